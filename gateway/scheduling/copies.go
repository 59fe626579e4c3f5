package scheduling

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// throughput tracks how many requests the copies of a model have served, for models that may have several. It belongs
// to one goroutine.
type throughput struct {
	samples map[state.CopyID][]sample // oldest first; all but the first are younger than a window
}

// sample is the number of requests that had ended at a moment.
type sample struct {
	at    time.Time
	ended int64
}

// record records how many requests to a copy have ended by now, and returns how many of them ended in the last window.
// ok is false until the copy has been observed for a whole window, and again after it has not been observed for two.
func (t *throughput) record(id state.CopyID, ended int64, now time.Time, window time.Duration) (n int64, ok bool) {
	list := t.samples[id]
	if len(list) > 0 && now.Sub(list[len(list)-1].at) > 2*window {
		list = nil
	}
	list = append(list, sample{now, ended})
	for len(list) > 1 && now.Sub(list[1].at) >= window {
		list = list[1:]
	}
	t.samples[id] = list
	return ended - list[0].ended, now.Sub(list[0].at) >= window
}

// addCopies queues a further copy of each model whose least loaded copy has a longer queue than it serves in
// Config.FairAfter, if the catalog allows one and a host can take it without waiting for a busy model. No request waits
// for it: they go to the existing copies, and to the new one once the mirror shows it. An idle copy is evicted like any
// idle model.
func (g *Gate) addCopies(ctx context.Context) {
	c, s := g.catalog(), g.mirror.Snapshot()
	maps.DeleteFunc(g.throughput.samples, func(_ state.CopyID, list []sample) bool { // of copies that no longer exist
		return time.Since(list[len(list)-1].at) > 2*g.cfg.FairAfter
	})
	for _, m := range c.Models {
		if m.Replicas.Max > 1 && s.Epoch != "" {
			g.addCopy(ctx, s, c, m)
		}
	}
}

func (g *Gate) addCopy(ctx context.Context, s *state.Snapshot, c *catalog.Catalog, m *catalog.Model) {
	queued, served := 0, 0
	for i, r := range s.Copies(m.ID) { // the least loaded first
		f := g.traffic.of(r.Host, m.ID)
		ours := f.open.Load()
		recent, known := g.throughput.record(state.CopyID{Host: r.Host, Model: m.ID}, f.ended.Load(), time.Now(), g.cfg.FairAfter)
		if i > 0 || !known || ours == 0 { // not the least loaded, too early, or another gateway's to decide
			continue
		}
		open := max(ours, int64(r.InFlight))
		queued = int(open) - parallelism(r)
		served = int(recent * open / ours) // assumes that the other gateways' requests fare like ours
	}
	if queued <= served {
		return
	}
	s, err := g.mirror.RefreshHosts(ctx, nil, m.ID)
	if err != nil {
		return // the next tick decides again
	}
	v := placement.View{Catalog: c, Evict: g.cfg.Evict}
	pool, want := v.Pool(s), v.Model(s, m.ID, "")
	if !policy.WantCopy(pool, want, queued, served) {
		return
	}
	g.mu.Lock()
	now := time.Now()
	g.recovery.observe(s, now)
	hosts, _ := g.hostBackoff.blockedKeys(now)
	avoidForModel, _ := g.avoidForModelLocked(m.ID, now)
	paused, operation := g.closed || g.recovery.active(now), g.nextOperationLocked()
	g.mu.Unlock()
	avoid := avoidSet{}
	avoid.add(notStarted, hosts...)
	avoid.add(notWoken, slices.Collect(maps.Keys(g.closedHosts(s, now)))...)
	avoid.add(notLoaded, avoidForModel...)
	p := policy.Place(pool, want, avoid)
	if paused || !waitsForNoBusyModel(p) {
		return
	}
	got, err := g.store.Acquire(ctx, state.Want{
		Gateway: g.id, Model: m.ID, Host: p.Host, Revision: s.RevisionOf(p.Host, m.ID), Background: true, Anew: true, Operation: operation,
	})
	switch {
	case errors.Is(err, state.ErrStale), errors.Is(err, state.ErrUnavailable):
		return // the next tick decides again
	case err != nil:
		g.log.Warn("another copy could not be queued", "model", m.ID, "host", p.Host, "error", err)
		return
	}
	g.log.Info("further copy is queued", "model", m.ID, "host", got.Host, "queue", queued, "served", served)
	if got.WakeToken != "" {
		g.mu.Lock()
		g.wakeLocked(got.Host, got.WakeToken)
		g.mu.Unlock()
	}
}

// waitsForNoBusyModel reports whether a placement need not wait for a busy model: a copy that did would come too late.
func waitsForNoBusyModel(p policy.Placement) bool {
	switch p.Reason.Code {
	case policy.FreeSlot, policy.IdleVictim, policy.Stopping, policy.AfterQueue, policy.WakeHost, policy.WakingHost:
		return p.Host != ""
	}
	return false
}

// parallelism returns how many requests a copy serves at the same time, 1 if its runner does not report it.
func parallelism(r *state.ModelRecord) int {
	var plan struct {
		Parallel int `json:"parallel"`
	}
	_ = json.Unmarshal([]byte(r.Fields["plan"]), &plan) // unreadable means unknown
	return max(1, plan.Parallel)
}
