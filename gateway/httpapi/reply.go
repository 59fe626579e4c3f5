package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
	"reveille/infra/state"
)

// reply answers with a JSON document.
func (r *request) reply(status int, v any) error {
	body, err := jsonscan.Marshal(v)
	if err != nil {
		return err
	}
	r.send(status, "application/json; charset=utf-8", body)
	return nil
}

// send answers with a complete body.
func (r *request) send(status int, contentType string, body []byte) {
	r.s.m.answer(r.routeName(), status)
	r.ctx.SetStatusCode(status)
	r.ctx.SetContentType(contentType)
	r.ctx.SetBody(body)
}

// textPlain is the media type of answers for people.
const textPlain = "text/plain; charset=utf-8"

// fields checks a JSON body and the fields that the route table names. An absent optional body counts as {}. The values
// are in the order of the route's keys, followed by those of more.
func (r *request) fields(more ...string) ([]jsonscan.Value, error) {
	route, body := r.hit.Route, r.body()
	keys := append(append(make([]string, 0, len(route.Keys())+len(more)), route.Keys()...), more...)
	values := make([]jsonscan.Value, len(keys))
	if err := jsonscan.Scan(body, keys, values); err != nil {
		return nil, invalidJSON(err)
	}
	if e := route.Check(values[:len(route.Keys())]); e != nil {
		return nil, e
	}
	return values, nil
}

// body returns the request's JSON body, {} for an absent optional one.
func (r *request) body() []byte {
	body := r.ctx.PostBody()
	if r.hit.Route.Body == api.BodyOptional && len(bytes.TrimSpace(body)) == 0 {
		return []byte("{}")
	}
	return body
}

// members decodes the body's members, which fields has checked to be an object.
func (r *request) members() (map[string]json.RawMessage, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(r.body(), &m); err != nil {
		return nil, api.New(api.InvalidJSON, "Invalid JSON body.").WithCause(err)
	}
	return m, nil
}

// textOf returns a member that, if present, must be a JSON string.
func textOf(m map[string]json.RawMessage, name string) (string, error) {
	var s *string
	if raw := m[name]; raw != nil && json.Unmarshal(raw, &s) != nil {
		return "", api.Newf(api.InvalidType, "'%s' must be a JSON string.", name).With(name)
	}
	if s == nil {
		return "", nil
	}
	return *s, nil
}

// flagOf returns a member that, if present, must be true, false or null; nil for absent and null.
func flagOf(m map[string]json.RawMessage, name string) (*bool, error) {
	var b *bool
	if raw := m[name]; raw != nil && json.Unmarshal(raw, &b) != nil {
		return nil, api.Newf(api.InvalidType, "'%s' must be true or false.", name).With(name)
	}
	return b, nil
}

// force reads a body's "force"; absent and null are false.
func (r *request) force() (bool, error) {
	m, err := r.members()
	if err != nil {
		return false, err
	}
	force, err := flagOf(m, "force")
	return force != nil && *force, err
}

// named returns the model that a management call's body names.
func (r *request) named(values []jsonscan.Value) (*catalog.Model, error) {
	v := r.hit.Route.ModelName(values)
	if v.Empty() {
		return nil, noModelName()
	}
	return r.s.modelNamed(v.String())
}

func noModelName() *api.Error {
	return api.New(api.MissingRequiredParameter, "No model specified. Name one in 'model_name'.").With("model_name")
}

// modelNamed is resolve for names outside inference, where there is no default.
func (s *Server) modelNamed(name string) (*catalog.Model, error) {
	if name == "" {
		return nil, noModelName()
	}
	return s.resolve(name, &api.Route{})
}

// clientContext returns a context that ends when the client leaves, with relay.ErrGone as its cause. Call stop before
// the handler returns.
func (r *request) clientContext() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	watch := r.s.watcher.Arm(r.ctx.Conn(), func() { cancel(relay.ErrGone) })
	return ctx, func() {
		watch.Stop()
		cancel(nil)
	}
}

// left reports whether err means that the client left, and then handles it: nobody reads the answer.
func (r *request) left(err error) bool {
	if !errors.Is(err, relay.ErrGone) {
		return false
	}
	r.s.m.answer(r.routeName(), statusGone)
	r.ctx.SetStatusCode(statusGone)
	r.ctx.SetConnectionClose()
	return true
}

// statusGone is logged and counted for clients that left; no client sees it.
const statusGone = 499

// storeError returns the client's error when the pool's state could not be read or written.
func storeError(err error) error {
	if errors.Is(err, state.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return api.New(api.StateUnavailable, "The pool's state is not available at the moment; try again.").WithCause(err)
	}
	return api.As(err)
}

// query returns a parameter of the request's query.
func (r *request) query(name string) string { return string(r.ctx.QueryArgs().Peek(name)) }

// asks reports whether a query parameter is set to anything but "false" and "0".
func (r *request) asks(name string) bool {
	if !r.ctx.QueryArgs().Has(name) {
		return false
	}
	v := r.query(name)
	return v != "false" && v != "0"
}

var okStatus = map[string]string{"status": "ok"}
