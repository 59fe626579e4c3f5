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
// are in the order of the route's keys.
func (r *Request) Fields() ([]jsonscan.Value, error) {
	route := r.Match.Route
	values := make([]jsonscan.Value, len(route.Keys()))
	if err := jsonscan.Scan(r.Body(), route.Keys(), values); err != nil {
		return nil, api.BadJSON(err)
	}
	if e := route.Check(values); e != nil {
		return nil, e
	}
	return values, nil
}

// Body returns the request's JSON body, {} for an absent optional one.
func (r *Request) Body() []byte {
	body := jsonscan.TrimMark(r.Ctx.PostBody())
	if r.Match.Route.Body == api.BodyOptional && len(bytes.TrimSpace(body)) == 0 {
		return []byte("{}")
	}
	return body
}

// Members decodes the members of a body that [Request.Fields] accepts.
func (r *Request) Members() (m map[string]json.RawMessage, err error) { return m, r.Into(&m) }

// Into decodes a body that [Request.Fields] accepts into v.
func (r *Request) Into(v any) error {
	if _, err := r.Fields(); err != nil {
		return err
	}
	err := json.Unmarshal(r.Body(), v)
	if wrong, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return api.Newf(api.InvalidType, "'%s' must not be of type %s.", wrong.Field, wrong.Value).WithParam(wrong.Field)
	} else if err != nil {
		return api.New(api.InvalidJSON, "Invalid JSON body.").WithCause(err)
	}
	return nil
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
