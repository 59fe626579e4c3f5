package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
)

// Reply answers with a JSON document.
func (r *Request) Reply(status int, v any) error {
	body, err := jsonscan.Marshal(v)
	if err != nil {
		return err
	}
	r.Send(status, "application/json; charset=utf-8", body)
	return nil
}

// Send answers with a complete body.
func (r *Request) Send(status int, contentType string, body []byte) {
	r.Answered(status)
	r.Ctx.SetStatusCode(status)
	r.Ctx.SetContentType(contentType)
	r.Ctx.SetBody(body)
}

// TextPlain is the media type of answers for people.
const TextPlain = "text/plain; charset=utf-8"

// Fields checks a JSON body and the fields that the route table names. An absent optional body counts as {}. The values
// are in the order of the route's keys, followed by those of more.
func (r *Request) Fields(more ...string) ([]jsonscan.Value, error) {
	route, body := r.Match.Route, r.Body()
	keys := append(append(make([]string, 0, len(route.Keys())+len(more)), route.Keys()...), more...)
	values := make([]jsonscan.Value, len(keys))
	if err := jsonscan.Scan(body, keys, values); err != nil {
		return nil, api.BadJSON(err)
	}
	if e := route.Check(values[:len(route.Keys())]); e != nil {
		return nil, e
	}
	return values, nil
}

// Body returns the request's JSON body, {} for an absent optional one.
func (r *Request) Body() []byte {
	body := r.Ctx.PostBody()
	if r.Match.Route.Body == api.BodyOptional && len(bytes.TrimSpace(body)) == 0 {
		return []byte("{}")
	}
	return body
}

// Members decodes the members of a body that [Request.Fields] accepts.
func (r *Request) Members() (map[string]json.RawMessage, error) {
	if _, err := r.Fields(); err != nil {
		return nil, err
	}
	return r.members()
}

func (r *Request) members() (map[string]json.RawMessage, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(r.Body(), &m); err != nil {
		return nil, api.New(api.InvalidJSON, "Invalid JSON body.").WithCause(err)
	}
	return m, nil
}

// TextOf returns a member that, if present, must be a JSON string.
func TextOf(m map[string]json.RawMessage, name string) (string, error) {
	var s *string
	if raw := m[name]; raw != nil && json.Unmarshal(raw, &s) != nil {
		return "", api.Newf(api.InvalidType, "'%s' must be a JSON string.", name).WithParam(name)
	}
	if s == nil {
		return "", nil
	}
	return *s, nil
}

// FlagOf returns a member that, if present, must be true, false or null; nil for absent and null.
func FlagOf(m map[string]json.RawMessage, name string) (*bool, error) {
	var b *bool
	if raw := m[name]; raw != nil && json.Unmarshal(raw, &b) != nil {
		return nil, api.Newf(api.InvalidType, "'%s' must be true or false.", name).WithParam(name)
	}
	return b, nil
}

// Force reads a body's "force"; absent and null are false.
func (r *Request) Force() (bool, error) {
	m, err := r.members()
	if err != nil {
		return false, err
	}
	force, err := FlagOf(m, "force")
	return force != nil && *force, err
}

// ClientContext returns a context that ends when the client leaves, with relay.ErrGone as its cause. Call stop before
// the handler returns.
func (r *Request) ClientContext() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	watch := r.Watch(func() { cancel(relay.ErrGone) })
	return ctx, func() {
		watch.Stop()
		cancel(nil)
	}
}

// Left reports whether err means that the client left, and then handles it: nobody reads the answer.
func (r *Request) Left(err error) bool {
	if !errors.Is(err, relay.ErrGone) {
		return false
	}
	r.Answered(StatusGone)
	r.Ctx.SetStatusCode(StatusGone)
	r.Ctx.SetConnectionClose()
	return true
}

// StatusGone is logged and counted for clients that left; no client sees it.
const StatusGone = 499

// Query returns a parameter of the request's query.
func (r *Request) Query(name string) string { return string(r.Ctx.QueryArgs().Peek(name)) }

// Asks reports whether a query parameter is set to anything but "false" and "0".
func (r *Request) Asks(name string) bool {
	if !r.Ctx.QueryArgs().Has(name) {
		return false
	}
	v := r.Query(name)
	return v != "false" && v != "0"
}

// UnlessLeft returns err, or nil if the request ended because its client left.
func (r *Request) UnlessLeft(err error) error {
	if r.Left(err) {
		return nil
	}
	return err
}
