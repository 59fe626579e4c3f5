package httpapi

import (
	"errors"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/quota"
	"reveille/infra/relay"
)

// checkBarred returns an error for a constrained request of a key whose constrained requests crashed engines.
func (x *exchange) checkBarred() error {
	if !x.constrained {
		return nil
	}
	return x.s.crashes.Check(x.Account, time.Now())
}

// crashed handles an engine that died with the request before the first byte of an answer. It returns relay.ErrAgain to repeat
// the request, otherwise e for the client.
//
// The dead engine's work on the request is lost, so the request is repeated, once (invariant 23). A constrained request may have
// been the cause: it is never repeated.
func (x *exchange) crashed(e *api.Error) error {
	if x.constrained {
		x.s.recordCrash(x.suspected)
		return e
	}
	if x.repeated || x.wait.policy == "fail" || x.s.draining.Load() {
		return e
	}
	x.s.log.Info("engine crashed, repeating a request", "request", x.ID, "model", x.model.ID, "host", x.endpoint.Host)
	x.repeated = true
	x.loadCharged = true // the request is not charged for the load that replaces the engine
	return x.retryAtGate(e)
}

// recordCrash records that an engine crashed with a constrained request. Each crash counts once, however often it is reported.
func (s *Server) recordCrash(p *suspect) {
	if p == nil {
		return
	}
	if _, barred := s.crashes.Record(p.engine, p.sent, time.Now(), s.suspects.keys(p.at)); barred {
		s.log.Warn("engines crashed under constrained requests of one key, refusing more of them", "request", p.request, "engine", p.engine, "for", quota.CrashWindow)
		s.suspects.recheck()
	}
}

// shouldRepeat decides whether to repeat the request of a stream that broke off before its first event.
func (x *exchange) shouldRepeat(err error) bool {
	e := x.asError(err)
	return errors.Is(e, api.EngineCrashed) && errors.Is(x.crashed(e), relay.ErrAgain)
}
