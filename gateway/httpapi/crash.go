package httpapi

import (
	"errors"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/quota"
	"reveille/infra/relay"
)

// barred refuses a constrained request of a key whose constrained requests crashed engines.
func (x *exchange) barred() error {
	if !x.constrained {
		return nil
	}
	return x.s.crashes.Check(x.account, time.Now())
}

// crashed handles the death of an engine that had the request and gave no byte of an answer. It returns relay.ErrAgain
// where the request is to be repeated, else e for the client.
//
// What the dead engine did with the request is lost with it, so the request is repeated, once (invariant 23). A
// constrained request may have been the cause: it is never repeated.
func (x *exchange) crashed(e *api.Error) error {
	if x.constrained {
		x.s.blame(x.suspected)
		return e
	}
	if x.repeated || x.wait.policy == "fail" || x.s.draining.Load() {
		return e
	}
	x.s.log.Info("engine crashed, repeating a request", "request", x.id, "model", x.model.ID, "host", x.endpoint.Host)
	x.repeated = true
	x.charged = true // the load that replaces the engine is not on this request's account
	return x.again(e)
}

// blame notes that an engine crashed with a constrained request. One crash counts once, however often it is noted.
func (s *Server) blame(p *suspect) {
	if p == nil {
		return
	}
	if _, barred := s.crashes.Note(p.engine, p.sent, time.Now(), s.suspects.keys(p.at)); barred {
		s.log.Warn("engines crashed under constrained requests of one key, refusing more of them", "request", p.request, "engine", p.engine, "for", quota.CrashWindow)
		s.suspects.lookAgain()
	}
}

// repeats is asked when a stream broke off before its first event.
func (x *exchange) repeats(err error) bool {
	e := x.asError(err)
	return errors.Is(e, api.EngineCrashed) && errors.Is(x.crashed(e), relay.ErrAgain)
}
