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

// permitsOf returns the queue that the request needs a permit of, nil for none.
func (x *exchange) permitsOf() *fairqueue.Queue {
	if e, ok := x.ref.Engine.(fairqueue.Limited); ok && !x.isReadOnly() {
		return e.Permits()
	}
	return nil
}

// tryPermit gets the request its permit unless it must wait for one.
func (x *exchange) tryPermit() bool {
	permits := x.permitsOf()
	if permits == nil || x.permits != nil {
		return true
	}
	tenant := string(x.field(rpc.HeaderTenant))
	if !permits.TryAcquire(tenant) {
		return false
	}
	x.permits, x.tenant = permits, tenant
	return true
}

// acquirePermit waits for a permit to send the request to the engine. A reply means that there is none.
func (x *exchange) acquirePermit() *reply {
	if x.tryPermit() {
		return nil
	}
	permits, tenant := x.permitsOf(), string(x.field(rpc.HeaderTenant))
	life, done := x.waiting()
	defer done()
	if permits.Acquire(life, tenant) == nil {
		x.permits, x.tenant = permits, tenant
		return nil
	}
	return x.finishUnsent(context.Cause(life))
}

// waiting counts an exchange that waits for its turn, until done. life ends with the exchange, or after the longest wait.
func (x *exchange) waiting() (life context.Context, done func()) {
	x.s.m.waiting.Add(1)
	life, cancel := x.life()
	limit := time.AfterFunc(LongAnswer*x.s.cfg.FirstByte, func() { cancel(errQueueTimeout) })
	return life, func() {
		limit.Stop()
		cancel(nil)
		x.s.m.waiting.Add(-1)
	}
}

// finishUnsent ends an exchange that the engine never saw.
func (x *exchange) finishUnsent(err error) *reply {
	x.finish(err)
	switch {
	case errors.Is(err, errQueueTimeout):
		return failure(fasthttp.StatusGatewayTimeout, rpc.CodeQueueTimeout, "The model was busy with other requests for too long.")
	case errors.Is(err, relay.ErrGone):
		return nobody
	}
	return x.engineFailed(err)
}

// isReadOnly reports whether a request only reads the engine's state and so does not wait. All others compute: a template or
// a tokenizer works on their bodies, if not the model; a WebSocket does for as long as it is open.
func (x *exchange) isReadOnly() bool {
	return (x.method == fasthttp.MethodGet || x.method == fasthttp.MethodHead) && x.handshake == nil
}
