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

var errQueueTimeout = errors.New("no permit or slot of the engine became free in time")

// permitsOf returns the queue from which the request needs a permit, nil for none.
func (a *activeRequest) permitsOf() *fairqueue.Queue {
	if a.computes() {
		return a.ref.Engine.Features().Permits
	}
	return nil
}

// tryPermit acquires the request's permit without waiting, and reports whether the request has all it needs.
func (a *activeRequest) tryPermit() bool {
	permits := a.permitsOf()
	if permits == nil || a.permits != nil {
		return true
	}
	tenant := string(a.field(rpc.HeaderTenant))
	if !permits.TryAcquire(tenant) {
		return false
	}
	a.permits, a.tenant = permits, tenant
	return true
}

// acquirePermit waits for a permit to send the request to the engine. It returns a reply if the request gets none.
func (a *activeRequest) acquirePermit() *reply {
	if a.tryPermit() {
		return nil
	}
	permits, tenant := a.permitsOf(), string(a.field(rpc.HeaderTenant))
	ctx, done := a.startWaiting()
	defer done()
	switch err := permits.Acquire(ctx, tenant, rpc.ParsePriority(string(a.field(rpc.HeaderPriority)))); {
	case err == nil:
		a.permits, a.tenant = permits, tenant
		return nil
	case errors.Is(err, fairqueue.ErrSentBack):
		a.complete(nil)
		a.s.m.sentBack.Inc()
		return refusal(rpc.RefusedSentBack)
	}
	return a.completeUnsent(context.Cause(ctx))
}

// startWaiting counts the request as waiting until done is called. ctx ends with the request, or after the maximum
// wait.
func (a *activeRequest) startWaiting() (ctx context.Context, done func()) {
	a.s.m.waiting.Add(1)
	ctx, cancel := a.waitContext()
	limit := time.AfterFunc(WholeResponseFactor*a.s.cfg.FirstByte, func() { cancel(errQueueTimeout) })
	return ctx, func() {
		limit.Stop()
		cancel(nil)
		a.s.m.waiting.Add(-1)
	}
}

// completeUnsent completes a request that the engine never saw, and returns its reply.
func (a *activeRequest) completeUnsent(err error) *reply {
	a.complete(err)
	switch {
	case errors.Is(err, errQueueTimeout):
		return failure(fasthttp.StatusGatewayTimeout, rpc.CodeQueueTimeout, "Timed out while waiting for the model, which was busy with other requests.")
	case errors.Is(err, relay.ErrClientGone):
		return clientGone
	}
	return a.engineFailed(err)
}

// computes reports whether the model, a template or a tokenizer processes the request. Others only read the engine's
// state and need no permit. A WebSocket computes for as long as it is open.
func (a *activeRequest) computes() bool {
	return a.method != fasthttp.MethodGet && a.method != fasthttp.MethodHead || a.handshake != nil
}
