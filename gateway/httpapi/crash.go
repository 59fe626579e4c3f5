package httpapi

import (
	"errors"
	"time"

	"reveille/gateway/api"
	"reveille/infra/relay"
)

// crashed handles an engine that died with the request, or broke its connection, before the first byte of an answer. Its
// work on the request is lost, so the request is repeated, once: the error is then errAgain, otherwise e for the client.
func (x *exchange) crashed(e *api.Error) error {
	if errors.Is(e, api.EngineCrashed) {
		x.recordCrash()
	}
	if x.repeated || x.wait.policy == "fail" || x.s.draining.Load() {
		return e
	}
	x.s.log.Info("engine crashed, repeating a request", "request", x.ID, "model", x.model.ID, "host", x.endpoint.Host)
	x.repeated = true
	x.loadCharged = true // the request is not charged for the load that replaces the engine
	return x.retryAtGate(e)
}

// recordCrash counts a crash against the request's key, in case the key was alone at the engine.
func (x *exchange) recordCrash() {
	x.s.crashes.Record(x.endpoint.Host, x.model.ID, x.ID, x.Account, x.sent, time.Now())
}

// shouldRepeat decides whether to repeat the request of a stream that broke off before its first event.
func (x *exchange) shouldRepeat(err error) bool {
	e := x.asError(err)
	_, told := errors.AsType[*relay.EventError](err) // else the runner broke off, and the engine may still compute
	return (errors.Is(e, api.EngineCrashed) || told && errors.Is(e, api.RunnerFailed)) && errors.Is(x.crashed(e), errAgain)
}
