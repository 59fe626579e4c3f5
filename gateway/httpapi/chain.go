package httpapi

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/pressure"
	"reveille/gateway/web"
	"reveille/infra/relay"
)

// request is one request in the chain.
type request struct {
	web.Request
	s        *Server
	route    *route // nil for a path that has none
	stream   bool   // it asked for a stream, on a route that has streams
	buffered relay.Body
	memory   memory // counts responses that are held
	keepBody bool   // the response's stream still needs the body and releases it
	observed *observed
	batch    context.Context // of the batch that it is a line of, whose end ends it; nil for requests of clients
}

// memory counts bytes within a limit, whose excess is an error or waits.
type memory interface {
	Reserve(n int) error
	Release(n int)
}

// handle runs the chain for one request.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	r := s.newRequest(ctx)
	defer r.release()
	if err := r.runChain(); err != nil {
		r.writeError(err)
	}
}

func (s *Server) newRequest(ctx *fasthttp.RequestCtx) *request {
	r := &request{s: s, memory: s.bodies, Request: web.Request{Server: &s.web, Ctx: ctx, Began: time.Now()}}
	r.ID = api.RequestID(ctx.Request.Header.Peek(api.HeaderRequestID))
	r.Match = match(&ctx.Request.Header)
	if r.Match.Route != nil {
		r.route = &s.routes[r.Match.Route.Index]
	}
	r.observed = s.observe(r)
	h := &ctx.Response.Header
	h.SetCanonical(api.CanonicalRequestID, []byte(r.ID))
	h.SetCanonical(api.CanonicalRequestIDAlt, []byte(r.ID))
	return r
}

// match finds the route. The result does not alias h.
func match(h *fasthttp.RequestHeader) api.RouteMatch {
	_, path := splitTarget(h.RequestURI())
	path, _, _ = bytes.Cut(path, []byte("?"))
	return router.Match(methodOf(h.Method()), string(path))
}

// methodOf returns a method as a string, without an allocation for the common ones.
func methodOf(m []byte) string {
	switch string(m) {
	case "POST":
		return "POST"
	case "GET":
		return "GET"
	}
	return string(m)
}

// runChain runs the checks in order and the route's handler.
func (r *request) runChain() error {
	h := &r.Ctx.Request.Header
	if r.s.cfg.Memory.Level() >= pressure.CloseConns {
		r.Ctx.SetConnectionClose()
	}
	smuggled := relay.SmugglingCheck(r.Ctx) // closes the connection, whatever the response
	if r.Ctx.IsOptions() && !smuggled {
		headers, err := r.s.cfg.Browsers.Check(sourceOf(h))
		if err != nil {
			return err
		}
		r.setHeaders(headers)
		r.setHeaders(api.Preflight(string(h.Peek("Access-Control-Request-Headers"))))
		r.s.m.countResponse("preflight", fasthttp.StatusNoContent)
		r.Ctx.SetStatusCode(fasthttp.StatusNoContent)
		return nil
	}
	if err := r.checkHead(); err != nil {
		return err
	}
	if smuggled {
		return api.New(api.InvalidRequest, "Content-Length and Transfer-Encoding must not be sent together.")
	}
	if r.Match.Head {
		r.Ctx.Response.SkipBody = true
	}
	if enc := h.Peek("Content-Encoding"); len(enc) > 0 && string(enc) != "identity" {
		return api.New(api.UnsupportedMediaType, "Compressed request bodies are not accepted; send the body as it is.")
	}
	if err := r.readBody(); err != nil {
		return err
	}
	return r.route.serve(r.s, r)
}

// checkHead makes the checks that need no body: the request's origin, its key, and that the route exists. It sets the
// headers that every response to a web page needs.
func (r *request) checkHead() error {
	h := &r.Ctx.Request.Header
	source := sourceOf(h)
	headers, e := r.s.cfg.Browsers.Check(source)
	if e != nil {
		return e
	}
	r.setHeaders(headers)
	if r.Key, e = r.s.authorize(h, r.Match, source); e != nil {
		return e
	}
	r.Account = r.Key.Account
	return nil
}

func (r *request) setHeaders(headers []api.Header) {
	for _, h := range headers {
		r.Ctx.Response.Header.Set(h.Name, h.Value)
	}
}

// writeError responds with an error in the dialect of the path. It logs the code and the cause but not the message,
// which may quote a client or an engine.
func (r *request) writeError(err error) {
	e := api.As(err)
	r.observed.setError(e)
	if e.Kind == api.SlotsPinnedConflict && r.Match.Route.Inference { // of a load with its own options
		e = api.New(api.SlotsPinned, e.Message).WithCause(e.Cause)
	}
	e = r.hideModels(e)
	d := r.Match.Dialect
	status := d.Status(e)
	logAt := r.s.log.Debug
	if e.Status >= 500 && e.Status != fasthttp.StatusServiceUnavailable {
		logAt = r.s.log.Warn
	} else if r.s.refusalLog.Allow() {
		logAt = r.s.log.Info
	}
	logAt("request refused", "request", r.ID, "route", r.RouteName(), "status", status, "code", e.Code, "param", e.Param, "cause", e.Cause)
	r.setHeaders(e.AppendHeaders(nil, rand.Float64))
	r.Ctx.Response.ResetBody() // also closes a stream that was set
	r.Ctx.Response.ImmediateHeaderFlush = false
	contentType, body := api.ContentType, d.Body(e, r.ID)
	if r.stream && r.s.cfg.StreamErrors {
		r.s.m.streamErrors.Inc()
		status, contentType, body = fasthttp.StatusOK, d.StreamType(), d.StreamError(e, r.ID)
		r.setHeaders(streamHeaders)
	}
	r.CountResponse(status)
	r.Ctx.SetStatusCode(status)
	r.Ctx.SetContentType(contentType)
	r.Ctx.SetBody(body)
}

// hideModels returns the error without the names of models that the request's key may not use.
func (r *request) hideModels(e *api.Error) *api.Error {
	if !r.Key.Limited() || e.Code != api.SlotsPinned.Code() {
		return e
	}
	return api.New(e.Kind, "Pinned models occupy the slots that this model needs.").WithCause(e.Cause)
}

// refusalLines is how many refused requests per second are logged at level info.
const refusalLines = 10

// streamHeaders are sent with every stream.
var streamHeaders = []api.Header{{Name: "Cache-Control", Value: "no-cache"}, {Name: "X-Accel-Buffering", Value: "no"}}

// panicked counts and logs a panic that was recovered.
func (s *Server) panicked(what string, v any) {
	s.m.panics.Inc()
	s.log.Error("recovered from a panic", "in", what, "panic", v, "stack", string(debug.Stack()))
}

// release turns a panic into a 500, so that one request's failure affects no other, and releases the body.
func (r *request) release() {
	if v := recover(); v != nil {
		r.s.panicked(r.RouteName()+" "+r.ID, v)
		r.keepBody = false
		r.writeError(api.New(api.InternalError, "The gateway could not handle this request."))
	}
	if !r.keepBody {
		r.dropBody()
	}
	r.s.bodies.Finish(r.Ctx)
	if o := r.observed; o != nil && !o.endsWithResponse {
		o.end(r)
	}
}
