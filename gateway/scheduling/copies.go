package scheduling

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// throughput tracks how many requests the copies of a model have served, for models that may have several. It belongs
// to one goroutine.
type throughput struct {
	samples  map[state.CopyID][]sample // oldest first; all but the first are younger than a window
	parallel map[string]int            // by model: the requests that a copy of it last served at the same time
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

// addCopies queues the further copies that policy.WantCopy wants of each model, if the catalog allows several and hosts
// can take them without waiting for a busy model. No request waits for them: they go to the existing copies, and to a
// new one once the mirror shows it. An idle copy is evicted like any idle model.
func (g *Gate) addCopies(ctx context.Context) {
	c, s := g.catalog(), g.mirror.Snapshot()
	maps.DeleteFunc(g.throughput.samples, func(_ state.CopyID, list []sample) bool { // of copies that no longer exist
		return time.Since(list[len(list)-1].at) > 2*g.copyWindow()
	})
	for _, m := range c.Models {
		if m.Replicas.Max < 2 {
			continue
		}
		copies := s.Copies(m.ID) // the least loaded first
		loads, decide := g.copyLoads(copies)
		g.rebalance(s, copies, loads)
		if len(copies) == 0 {
			loads, decide = g.burst(m)
		}
		if !decide || loads[0].Queued() <= 0 {
			continue
		}
		for range m.Replicas.Max {
			if !g.addCopy(ctx, c, m, loads) {
				break
			}
		}
	}
}

// copyWindow is how long a copy is observed before further ones are decided about: FairAfter, but at least the time
// between two observations.
func (g *Gate) copyWindow() time.Duration { return max(g.cfg.FairAfter, renewEvery) }

// copyLoads records and returns how busy copies of a model are. decide reports whether to decide about further ones:
// the least loaded has been observed for long enough, and some of its requests are this gateway's, so that it is not
// another's to decide.
func (g *Gate) copyLoads(copies []*state.ModelRecord) (loads []policy.CopyLoad, decide bool) {
	for i, r := range copies {
		model := r.ID
		f := g.traffic.of(r.Host, model)
		ours := f.open.Load()
		recent, known := g.throughput.record(state.CopyID{Host: r.Host, Model: model}, f.ended.Load(), time.Now(), g.copyWindow())
		open := max(ours, int64(r.InFlight))
		// The other gateways' requests are assumed to fare like ours. A copy without any of ours, or that has just been
		// loaded, is assumed to serve what it has.
		served := open
		if known && ours > 0 {
			served = recent * open / ours
			decide = decide || i == 0
		}
		l := policy.CopyLoad{Open: int(open), Served: int(served), Parallel: r.Plan().Parallel}
		if l.Parallel > 0 {
			g.throughput.parallel[model] = l.Parallel
		}
		loads = append(loads, l)
	}
	return loads, decide
}

// burst returns the requests that wait for the first copy of a model, if they came together: what gathers later, while a
// host wakes, may be served before a further host has woken. Nothing is decided if it is not known how many requests a
// copy serves at the same time, from its last load or the catalog.
func (g *Gate) burst(m *catalog.Model) (loads []policy.CopyLoad, decide bool) {
	option, _ := m.Options["n_parallel"].(int64)
	parallel := cmp.Or(g.throughput.parallel[m.ID], int(option))
	g.mu.Lock()
	defer g.mu.Unlock()
	gr := g.groups[m.ID]
	if gr == nil || parallel == 0 || time.Since(gr.began) > g.copyWindow()+3*renewEvery { // the gateways learn of each other's requests
		return nil, false
	}
	return []policy.CopyLoad{{Open: max(gr.waiting, gr.waiters.Len()), Parallel: parallel}}, true
}

// rebalance asks runners for requests that wait at their engines while other copies have room, such as one that has
// just been loaded. Each gateway asks for its share of them, rounded up.
func (g *Gate) rebalance(s *state.Snapshot, copies []*state.ModelRecord, loads []policy.CopyLoad) {
	if g.cfg.SendBack == nil {
		return
	}
	for i, n := range policy.Rebalance(loads) {
		r := copies[i]
		id := state.CopyID{Host: r.Host, Model: r.ID}
		open := max(1, loads[i].Open)
		if n = (n*int(g.traffic.of(r.Host, r.ID).open.Load()) + open - 1) / open; n == 0 {
			continue
		}
		if _, busy := g.balancing.LoadOrStore(id, true); busy {
			continue
		}
		g.work.Go(func() {
			defer g.balancing.Delete(id)
			if err := g.cfg.SendBack(g.life, s.Hosts[id.Host], id.Model, n); err != nil {
				g.log.Debug("waiting requests were not sent back", "host", id.Host, "model", id.Model, "error", err)
			}
		})
	}
}

// addCopy queues one further copy of a model whose copies are so busy. It returns whether to call it again, for a
// further one. Every call decides on fresh data, in which the loads that any gateway has queued meanwhile count. A
// decision that another gateway's has overtaken is refused as stale, so that two gateways never add twice what is
// wanted.
func (g *Gate) addCopy(ctx context.Context, c *catalog.Catalog, m *catalog.Model, loads []policy.CopyLoad) bool {
	s, err := g.mirror.RefreshHosts(ctx, nil, m.ID)
	if err != nil {
		return false // the next tick decides again
	}
	v := placement.View{Catalog: c, Evict: g.cfg.Evict}
	pool, want := v.Pool(s), v.Model(s, m.ID, "")
	wanted := policy.WantCopy(pool, want, loads)
	if wanted == 0 {
		return false
	}
	got, ok := g.queueCopy(ctx, s, pool, want, waitsForNoBusyModel, "low", nil)
	if ok {
		g.log.Info("further copy is queued", "model", m.ID, "host", got.Host, "wanted", wanted,
			"open", loads[0].Open, "served", loads[0].Served)
	}
	return ok && wanted > 1
}

// queueCopy queues a load, for which nobody waits, where the policy places it in a snapshot, if fits accepts that. ok is
// false if it did not.
func (g *Gate) queueCopy(ctx context.Context, s *state.Snapshot, pool policy.Snapshot, want policy.Model, fits func(policy.Placement) bool, priority string, fields map[string]string) (got state.Acquired, ok bool) {
	g.mu.Lock()
	now := time.Now()
	g.recovery.observe(s, now)
	failedStarts, _ := g.hostBackoff.blockedKeys(now)
	failedLoads, _ := g.avoidForModelLocked(want.ID, now)
	paused, operation := g.closed || g.recovery.active(now), g.nextOperationLocked()
	g.mu.Unlock()
	p := policy.Place(pool, want, avoiding(failedStarts, g.closedHosts(s, now), failedLoads...))
	if paused || !fits(p) {
		return got, false
	}
	got, err := g.store.Acquire(ctx, state.Want{
		Gateway: g.id, Model: want.ID, Host: p.Host, Revision: s.RevisionOf(p.Host, want.ID), Operation: operation,
		Unattended: true, OwnTicket: true, Priority: priority, Fields: fields,
	})
	switch {
	case errors.Is(err, state.ErrStale), errors.Is(err, state.ErrUnavailable):
		return got, false // the next call decides again
	case err != nil:
		g.log.Warn("a copy could not be queued", "model", want.ID, "host", p.Host, "error", err)
		return got, false
	}
	g.wake(got.Host, got.WakeToken)
	return got, true
}

// waitsForNoBusyModel reports whether a placement need not wait for a busy model: a copy that did would come too late.
func waitsForNoBusyModel(p policy.Placement) bool {
	switch p.Reason.Code {
	case policy.FreeSlot, policy.IdleVictim, policy.Stopping, policy.AfterQueue, policy.WakeHost, policy.WakingHost:
		return p.Host != ""
	}
	return false
}
