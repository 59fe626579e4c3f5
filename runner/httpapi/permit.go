package httpapi

import (
	"context"
	"errors"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/runner/fairqueue"
)

var errQueueTimeout = errors.New("the engine had no permit for the request in time")

// acquirePermit waits for a permit to send the request to the engine. It returns false, after it answered the request,
// if there is none.
func (s *Server) acquirePermit(ctx *fasthttp.RequestCtx, x *exchange) bool {
	e, ok := x.pass.Engine.(fairqueue.Limited)
	if !ok || reads(ctx) || e.Permits() == nil {
		return true
	}
	permits, tenant := e.Permits(), string(ctx.Request.Header.Peek(rpc.HeaderTenant))
	if permits.TryAcquire(tenant) {
		x.permits, x.tenant = permits, tenant
		return true
	}
	s.m.waiting.Add(1)
	defer s.m.waiting.Add(-1)
	life, cancel := x.life()
	defer cancel(nil)
	limit := time.AfterFunc(LongAnswer*s.cfg.FirstByte, func() { cancel(errQueueTimeout) })
	defer limit.Stop()
	if permits.Acquire(life, tenant) == nil {
		x.permits, x.tenant = permits, tenant
		return true
	}
	s.unserved(ctx, x, context.Cause(life))
	return false
}

// unserved ends an exchange that the engine never saw, and answers.
func (s *Server) unserved(ctx *fasthttp.RequestCtx, x *exchange, err error) {
	x.finish(err)
	switch {
	case errors.Is(err, errQueueTimeout):
		s.fail(ctx, fasthttp.StatusGatewayTimeout, "queue_timeout", "The model was busy with other requests for too long.")
	case !errors.Is(err, relay.ErrGone): // else the client is gone
		s.engineFailed(ctx, err)
	}
}

// reads reports whether a request only reads the engine's state and so does not wait. All others compute: a template or
// a tokenizer works on their bodies, if not the model; a WebSocket does for as long as it is open.
func reads(ctx *fasthttp.RequestCtx) bool {
	return (ctx.IsGet() || ctx.IsHead()) && !relay.AsksWebSocket(&ctx.Request.Header)
}
