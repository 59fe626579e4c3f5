package scheduling

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// recoveryTimeout bounds how long loads wait for runners to register again after the store lost its data.
const recoveryTimeout = 10 * time.Second

// recoveryPause detects that the store lost its data, and delays loads until every host known before has registered
// again. Until then loaded models may look unloaded and awake hosts asleep. It reads no clock.
type recoveryPause struct {
	epoch   string
	last    *state.Snapshot // the last one seen
	missing map[string]bool // hosts that were ready before the loss and have not registered since
	until   time.Time
}

// observe processes a snapshot and ignores an empty one.
func (r *recoveryPause) observe(s *state.Snapshot, now time.Time) {
	if s.Taken.IsZero() {
		return
	}
	if s.Epoch != r.epoch && r.epoch != "" {
		r.missing, r.until = map[string]bool{}, now.Add(recoveryTimeout)
		for name, h := range r.last.Hosts {
			if h.State == policy.Ready {
				r.missing[name] = true
			}
		}
	}
	r.epoch = s.Epoch
	r.last = s
	for name := range r.missing {
		if h := s.Hosts[name]; h != nil && h.State == policy.Ready {
			delete(r.missing, name)
		}
	}
}

// active reports whether loads must wait.
func (r *recoveryPause) active(now time.Time) bool { return len(r.missing) > 0 && now.Before(r.until) }
