package httpapi

import (
	"errors"
	"time"

	"reveille/gateway/api"
	"reveille/infra/relay"
)

// handleCrash handles an engine that died with the request, or broke its connection, before the first byte of a
// response. Its work on the request is lost, so the request is repeated, once: the error is then errRetry, otherwise e
// for the client.
func (x *exchange) handleCrash(e *api.Error) error {
	if errors.Is(e, api.EngineCrashed) {
		x.recordCrash()
	}
	if x.try.repeated || x.routing.wait.policy == "fail" || x.call.s.draining.Load() {
		return e
	}
	x.call.s.log.Info("engine crashed, repeating a request", "request", x.call.ID, "model", x.call.model.ID, "host", x.routing.endpoint.Host)
	x.try.repeated = true
	x.routing.loadCharged = true // the request is not charged for the load that replaces the engine
	return x.retryAtGate(e)
}

// recordCrash counts a crash against the request's key, in case the key was alone at the engine.
func (x *exchange) recordCrash() {
	x.call.s.crashes.Record(x.routing.endpoint.Host, x.call.model.ID, x.call.ID, x.call.Account, x.try.sent, time.Now())
}

// shouldRepeat decides whether to repeat the request of a stream that broke off before its first event.
func (x *exchange) shouldRepeat(err error) bool {
	e := x.asError(err)
	_, reported := errors.AsType[*relay.EventError](err) // else the runner broke off, and the engine may still compute
	return (errors.Is(e, api.EngineCrashed) || reported && errors.Is(e, api.RunnerFailed)) && errors.Is(x.handleCrash(e), errRetry)
}
