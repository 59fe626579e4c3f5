package admit

import (
	"time"

	"reveille/infra/state"
)

// The states of a wait.
const (
	StateQueued  = "queued"  // behind other loads, or behind requests to models that have to go
	StateWaking  = "waking"  // its host is starting
	StatePulling = "pulling" // its weights are being fetched
	StateLoading = "loading" // its engine is starting
)

// Stage is how far a wait is, for people.
type Stage struct {
	State    string
	Host     string        // "" while none is chosen
	Waited   time.Duration // since Enter
	Position int           // in the host's queue from 1; 0 when its load is under way or it has no place yet
	ETA      time.Duration // estimate of what is left; 0 when unknown
}

// Stage tells how far the wait is. It makes no call.
func (w *Waiter) Stage() Stage {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	s := w.gate.stageLocked(w.group)
	s.Waited = time.Since(w.entered)
	return s
}

func (g *Gate) stageLocked(gr *group) Stage {
	return stage(&gr.need, g.mirror.Snapshot(), &g.learned, time.Now())
}

// heldUpByBusy reports whether a host is up and loads nothing, so that what is queued there waits for busy models.
func (g *Gate) heldUpByBusy(host string) bool {
	h := g.mirror.Snapshot().Hosts[host]
	return h != nil && h.State == "ready" && h.Loading == ""
}

// stage derives a wait's stage from its group's need and a snapshot.
func stage(n *need, s *state.Snapshot, known *estimates, now time.Time) Stage {
	out := Stage{State: StateQueued, Host: n.host, Position: n.position}
	if n.ticket == "" {
		return out
	}
	own := known.load[n.model]
	h := s.Hosts[n.host]
	if n.state == "loading" {
		out.State, out.Position = StateLoading, 0
		if h != nil && h.Models[n.model] != nil && h.Models[n.model].State == StatePulling {
			out.State = StatePulling
		}
		if own > 0 {
			out.ETA = max(time.Second, own-now.Sub(n.begun))
		}
		return out
	}
	var before time.Duration
	if h == nil || h.State == "asleep" || h.State == "waking" {
		out.State = StateWaking
		before = known.wake[n.host]
		if h != nil && h.State == "waking" && before > 0 {
			woken := time.Duration(s.NowMS-number(h.Fields["waking_ms"]))*time.Millisecond + now.Sub(s.Taken)
			before = max(time.Second, before-woken)
		}
	}
	if h != nil {
		for _, t := range h.Queue {
			if t.ID == n.ticket {
				break
			}
			before += known.load[t.Model]
		}
	}
	if own > 0 {
		out.ETA = before + own
	}
	return out
}

// estimates are smoothed durations seen before: of loads by model, of wakes by host.
type estimates struct {
	load map[string]time.Duration
	wake map[string]time.Duration
}

// smooth mixes a new duration into the average kept under key: the newest counts a third.
func smooth(m map[string]time.Duration, key string, d time.Duration) {
	if d <= 0 {
		return
	}
	if old, ok := m[key]; ok {
		d = old + (d-old)/3
	}
	m[key] = d
}
