package scheduling

import (
	"time"

	"reveille/gateway/api"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// The stages of a wait.
const (
	StageQueued  = "queued"  // behind other loads, or behind requests to its victims
	StageWaking  = "waking"  // its host is starting
	StagePulling = "pulling" // its weights are being fetched
	StageLoading = "loading" // its engine is starting
)

// StageChange is when a load entered a stage.
type StageChange struct {
	Stage string
	From  time.Time
}

// maxStages bounds the changes that are kept of a load that starts over again and again.
const maxStages = 32

// noteStageLocked keeps the changes of a group's stage.
func (g *Gate) noteStageLocked(gr *group, now time.Time) {
	st := progressOf(&gr.acquisition, g.mirror.Snapshot(), &g.estimates, now).Stage
	if n := len(gr.stages); n == 0 || gr.stages[n-1].Stage != st && n < maxStages {
		gr.stages = append(gr.stages, StageChange{st, now})
	}
}

// Progress returns the progress of the wait, with Waited since Enter. It makes no call.
func (w *Waiter) Progress() api.LoadingProgress {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	s := w.gate.progressLocked(w.group)
	s.Waited = time.Since(w.entered)
	return s
}

// ProgressOf returns the progress of a model's load that anyone in the pool waits for, as its waiters see it; ok is
// false if there is none. Waited is the longest wait for it. It makes no call.
func (g *Gate) ProgressOf(model string) (s api.LoadingProgress, ok bool) {
	snap, now := g.mirror.Snapshot(), time.Now()
	asked, waited := pending(snap, model, now)
	g.mu.Lock()
	defer g.mu.Unlock()
	if gr := g.groups[model]; gr != nil && (gr.waiters.Len() > 0 || !gr.startUntil.IsZero()) {
		s, ok = progressOf(&gr.acquisition, snap, &g.estimates, now), true
		if first := gr.waiters.Front(); first != nil {
			waited = max(waited, now.Sub(first.Value.(*Waiter).entered))
		}
	} else if asked != nil {
		s, ok = progressOf(asked, snap, &g.estimates, now), true
	}
	s.Waited = waited
	return s, ok
}

// pending returns a model's oldest load in a snapshot, as its waiters see it, and how long ago it was requested; nil if
// there is none.
func pending(s *state.Snapshot, model string, now time.Time) (*acquisition, time.Duration) {
	var out *acquisition
	var oldest state.TicketRecord
	for name, h := range s.Hosts {
		position := 0
		for _, t := range h.Queue {
			if t.State != state.TicketLoading {
				position++
			}
			if t.Kind != "load" || t.Model != model || out != nil && (t.Created > oldest.Created || t.Created == oldest.Created && t.ID > oldest.ID) {
				continue
			}
			oldest, out = t, &acquisition{model: model, ticket: t.ID, host: name, state: t.State, position: position}
		}
	}
	if out == nil {
		return nil, 0
	}
	since := func(ms int64) time.Duration {
		return max(0, time.Duration(s.NowMS-ms)*time.Millisecond+now.Sub(s.Taken))
	}
	if out.state == state.TicketLoading {
		out.loadingSince = now.Add(-since(state.ParseNumber(oldest.Fields["begun_ms"])))
	}
	return out, since(oldest.Created)
}

func (g *Gate) progressLocked(gr *group) api.LoadingProgress {
	return progressOf(&gr.acquisition, g.mirror.Snapshot(), &g.estimates, time.Now())
}

// waitsForBusy reports whether a host is awake and loads nothing, which means that its queue waits for busy models.
func (g *Gate) waitsForBusy(host string) bool {
	h := g.mirror.Snapshot().Hosts[host]
	return h != nil && h.State == policy.Ready && h.Loading == ""
}

// StageOf returns the stage of a load that is queued or in progress; h is its host, nil for one that has no record yet.
func StageOf(h *state.HostRecord, t state.TicketRecord) string {
	switch {
	case t.State == state.TicketLoading:
		return StageLoading
	case h == nil || h.State == policy.Asleep || h.State == policy.Waking:
		return StageWaking
	case t.Pulling:
		return StagePulling
	}
	return StageQueued
}

// progressOf derives a wait's progress from its group's acquisition and a snapshot.
func progressOf(a *acquisition, s *state.Snapshot, known *estimates, now time.Time) api.LoadingProgress {
	out := api.LoadingProgress{Model: a.model, Stage: StageQueued, Host: a.host, Position: a.position}
	if a.ticket == "" {
		return out
	}
	own, h := known.load[a.model], s.Hosts[a.host]
	ticket := state.TicketRecord{}
	var before time.Duration
	if h != nil {
		for _, t := range h.Queue {
			if t.ID == a.ticket {
				ticket = t
				break
			}
			before += known.load[t.Model]
		}
	}
	ticket.State = a.state // the snapshot may be older
	out.Stage = StageOf(h, ticket)
	switch out.Stage {
	case StageLoading:
		out.Position, out.Loading = 0, now.Sub(a.loadingSince)
		if own > 0 {
			out.ETA = max(time.Second, own-out.Loading)
		}
		return out
	case StagePulling:
		out.BytesDone, out.BytesTotal = ticket.Pulled.Done, ticket.Pulled.Total
		return out // load times say nothing about pull times
	case StageWaking:
		wake := known.wake[a.host]
		if h != nil && h.State == policy.Waking && wake > 0 {
			woken := time.Duration(s.NowMS-state.ParseNumber(h.Fields["waking_ms"]))*time.Millisecond + now.Sub(s.Taken)
			wake = max(time.Second, wake-woken)
		}
		before += wake
	}
	if own > 0 {
		out.ETA = before + own
	}
	return out
}

// estimates are smoothed observed durations: of loads by model, of wakes by host.
type estimates struct {
	load map[string]time.Duration
	wake map[string]time.Duration
}

// smooth updates the moving average under key: the new duration counts for a third.
func smooth(m map[string]time.Duration, key string, d time.Duration) {
	if d <= 0 {
		return
	}
	if old, ok := m[key]; ok {
		d = old + (d-old)/3
	}
	m[key] = d
}
