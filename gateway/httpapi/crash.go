package httpapi

import (
	"errors"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/quota"
	"reveille/infra/relay"
)

// crashes is the crash record of the request's key; requests without a key share one.
func (r *request) crashes() *quota.Crashes {
	if r.account != nil {
		return &r.account.Crashes
	}
	return &r.s.anonymous
}

// barred refuses a constrained request of a key whose constrained requests crashed engines.
func (x *exchange) barred() error {
	if !x.constrained {
		return nil
	}
	return x.crashes().Check(time.Now())
}

// crashed handles the death of an engine that had the request and gave no byte of an answer. It returns relay.ErrAgain
// where the request is to be repeated, else e for the client.
//
// What the dead engine did with the request is lost with it, so the request is repeated, once (invariant 23). A
// constrained request may have been the cause: it counts against its key and is never repeated.
func (x *exchange) crashed(e *api.Error) error {
	if x.constrained {
		x.blame()
		return e
	}
	if x.repeated || x.wait.policy == "fail" || x.s.draining.Load() {
		return e
	}
	x.s.log.Info("engine crashed, repeating a request", "request", x.id, "model", x.model.ID, "host", x.route.Host)
	x.repeated = true
	x.charged = true // the load that replaces the engine is not on this request's account
	return x.again(e)
}

// blame counts a crash against the key of a constrained request.
func (x *exchange) blame() {
	x.s.blame(x.crashes(), engineName(x.route, x.model.ID), x.sent, x.id)
}

// blame counts the crash of an engine against the key of a constrained request that it had. One crash counts once, however
// often it is noted.
func (s *Server) blame(crashes *quota.Crashes, engine string, sent time.Time, request string) {
	if crashes.Note(engine, sent, time.Now()) {
		s.log.Warn("engines crashed under constrained requests of one key, refusing more of them", "request", request, "engine", engine, "for", quota.CrashWindow)
	}
}

// repeats is asked when a stream broke off before its first event.
func (x *exchange) repeats(err error) bool {
	e := x.asError(err)
	return errors.Is(e, api.EngineCrashed) && errors.Is(x.crashed(e), relay.ErrAgain)
}
