package httpapi

import (
	"context"
	"errors"
	"strings"
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
	if !ok || !computes(ctx) || e.Slots() == nil {
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

// computes reports whether a request makes the engine compute. Readings of its state, and counts of tokens, do not wait
// behind those that do.
func computes(ctx *fasthttp.RequestCtx) bool {
	path := string(ctx.Path())
	return ctx.IsPost() && !strings.HasSuffix(path, "tokenize") && !strings.HasSuffix(path, "/count_tokens") && !strings.HasSuffix(path, "/input_tokens")
}
