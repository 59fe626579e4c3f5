package scheduling

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// recoveryTimeout bounds how long loads wait for runners to register again after the store lost its data.
const recoveryTimeout = 10 * time.Second

// recoveryHold detects that the store lost its data, and holds loads back until every runner known before has registered
// again: until then loaded models may look unloaded and awake hosts asleep. It reads no clock.
type recoveryHold struct {
	epoch   string
	ready   map[string]bool // hosts that were ready when last seen whole
	missing map[string]bool // the ones of ready that have not registered since
	until   time.Time
}

// see processes a snapshot and ignores an empty one.
func (r *recoveryHold) see(s *state.Snapshot, now time.Time) {
	if s.Taken.IsZero() {
		return
	}
	if s.Epoch != r.epoch && r.epoch != "" {
		r.missing, r.until = r.ready, now.Add(recoveryTimeout)
		r.ready = nil
	}
	if s.Epoch != "" || r.epoch != "" {
		r.epoch = s.Epoch
	}
	if r.ready == nil {
		r.ready = map[string]bool{}
	}
	for name, h := range s.Hosts {
		if h.State == policy.Ready {
			r.ready[name] = true
			delete(r.missing, name)
		} else {
			delete(r.ready, name)
		}
	}
}

// waiting reports whether to hold loads back.
func (r *recoveryHold) waiting(now time.Time) bool { return len(r.missing) > 0 && now.Before(r.until) }
