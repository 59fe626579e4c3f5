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

var errTurn = errors.New("the request's turn did not come in time")

// turn waits until the engine has room for a request, which come by tenant. It reports false when there will be
// none; the request is answered then.
func (s *Server) turn(ctx *fasthttp.RequestCtx, x *exchange) bool {
	e, ok := x.pass.Engine.(fairqueue.Limited)
	if !ok || reads(ctx) || e.Slots() == nil {
		return true
	}
	slots, tenant := e.Slots(), string(ctx.Request.Header.Peek(rpc.HeaderTenant))
	if slots.TryAcquire(tenant) {
		x.slots, x.tenant = slots, tenant
		return true
	}
	s.m.waiting.Add(1)
	defer s.m.waiting.Add(-1)
	life, cancel := x.life()
	defer cancel(nil)
	limit := time.AfterFunc(LongAnswer*s.cfg.FirstByte, func() { cancel(errTurn) })
	defer limit.Stop()
	if slots.Acquire(life, tenant) == nil {
		x.slots, x.tenant = slots, tenant
		return true
	}
	err := context.Cause(life)
	x.finish(err)
	switch {
	case errors.Is(err, errTurn):
		s.fail(ctx, fasthttp.StatusGatewayTimeout, "queue_timeout", "The model was busy with other requests for too long.")
	case !errors.Is(err, relay.ErrGone): // else nobody is there to be answered
		s.engineFailed(ctx, err)
	}
	return false
}

// reads reports whether a request only reads the engine's state, which does not wait. All others compute: a template or a
// tokenizer works on their bodies, if not the model.
func reads(ctx *fasthttp.RequestCtx) bool { return ctx.IsGet() || ctx.IsHead() }
