package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
)

// Reply responds with a JSON document.
func (r *Request) Reply(status int, v any) error {
	body, err := jsonscan.Marshal(v)
	if err != nil {
		return err
	}
	r.Send(status, "application/json; charset=utf-8", body)
	return nil
}

// Send responds with a complete body.
func (r *Request) Send(status int, contentType string, body []byte) {
	r.CountResponse(status)
	r.Ctx.SetStatusCode(status)
	r.Ctx.SetContentType(contentType)
	r.Ctx.SetBody(body)
}

// TextPlain is the media type of responses for people.
const TextPlain = "text/plain; charset=utf-8"

// CheckBody checks a JSON body and the fields that the route table names. An absent optional body counts as {}.
func (r *Request) CheckBody() error {
	if r.fields != nil {
		return nil
	}
	route := r.Match.Route
	values := make([]jsonscan.Value, len(route.Keys()))
	if err := jsonscan.Scan(r.Body(), route.Keys(), values); err != nil {
		return api.BadJSON(err)
	}
	if e := route.Check(values); e != nil {
		return e
	}
	r.fields = values
	return nil
}

// ModelName checks the body and returns the value of the field that names the model.
func (r *Request) ModelName() (jsonscan.Value, error) {
	if err := r.CheckBody(); err != nil {
		return jsonscan.Value{}, err
	}
	return r.Match.Route.ModelName(r.fields), nil
}

// Streams reports whether the client wants a stream. The body must have been checked.
func (r *Request) Streams() bool { return r.Match.Route.Stream(r.fields) }

// Body returns the request's JSON body, {} for an absent optional one.
func (r *Request) Body() []byte {
	body := jsonscan.TrimMark(r.Ctx.PostBody())
	if r.Match.Route.Body == api.BodyOptional && len(bytes.TrimSpace(body)) == 0 {
		return []byte("{}")
	}
	return body
}

// Members checks the body and decodes its members.
func (r *Request) Members() (m map[string]json.RawMessage, err error) { return m, r.Decode(&m) }

// Decode checks the body and decodes it into v.
func (r *Request) Decode(v any) error {
	if err := r.CheckBody(); err != nil {
		return err
	}
	err := json.Unmarshal(r.Body(), v)
	if wrong, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return api.Newf(api.InvalidType, "'%s' must not be of type %s.", wrong.Field, wrong.Value).WithParam(wrong.Field)
	} else if err != nil {
		return api.New(api.InvalidType, "A field of the request has the wrong type.").WithCause(err)
	}
	return nil
}

// ClientContext returns a context that ends when the client leaves, with relay.ErrClientGone as its cause. Call stop before
// the handler returns.
func (r *Request) ClientContext() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	watch := r.Watch(func() { cancel(relay.ErrClientGone) })
	return ctx, func() {
		watch.Stop()
		cancel(nil)
	}
}

// HandleClientGone reports whether err means that the client left, and then handles it: nobody reads the response.
func (r *Request) HandleClientGone(err error) bool {
	if !errors.Is(err, relay.ErrClientGone) {
		return false
	}
	r.CountResponse(StatusClientGone)
	r.Ctx.SetStatusCode(StatusClientGone)
	r.Ctx.SetConnectionClose()
	return true
}

// StatusClientGone is logged and counted for clients that left; no client sees it.
const StatusClientGone = 499

// Query returns a parameter of the request's query.
func (r *Request) Query(name string) string { return string(r.Ctx.QueryArgs().Peek(name)) }

// QueryLimit returns the query's limit of a list, or preset if it has none.
func (r *Request) QueryLimit(preset, max int) (int, error) {
	text := r.Query("limit")
	if text == "" {
		return preset, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > max {
		return 0, api.Newf(api.InvalidType, "'limit' must be a number from 1 to %d.", max).WithParam("limit")
	}
	return n, nil
}

// QueryFlag reports whether a query parameter is set to anything but "false" and "0".
func (r *Request) QueryFlag(name string) bool {
	if !r.Ctx.QueryArgs().Has(name) {
		return false
	}
	v := r.Query(name)
	return v != "false" && v != "0"
}

// UnlessClientGone returns err, or nil if the request ended because its client left.
func (r *Request) UnlessClientGone(err error) error {
	if r.HandleClientGone(err) {
		return nil
	}
	return err
}
