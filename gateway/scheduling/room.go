package scheduling

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// leftoverIdle is how long a copy that makes room is unused until another model of a batch takes its place: longer than
// the pauses between the attempts of a batch's line. leftoverEvery is how often its unload is tried.
const (
	leftoverIdle  = 20 * time.Second
	leftoverEvery = 5 * time.Second
)

// LoadIfRoom is for the lines of a batch. If a host is awake and has room, it queues the load of a model without a copy, or
// a further copy of one whose copies are all full, and charges account for the load. It wakes no host and evicts no model
// that others use. For a model without a copy it may unload a copy that was loaded in this way, and has been used by
// nothing for a while, so that a later call finds room. Of calls at the same time, one does this.
func (g *Gate) LoadIfRoom(ctx context.Context, model string, account Account) {
	if !g.roomMu.TryLock() {
		return
	}
	defer g.roomMu.Unlock()
	c, s := g.catalog(), g.mirror.Snapshot()
	v := placement.View{Catalog: c, Evict: g.cfg.Evict}
	if _, known := c.Model(model); !known || s.Epoch == "" || !g.wantsForBatch(v, s, model) {
		return
	}
	if free, leftover := roomFor(v, s, model); !free && leftover.Model == "" {
		return
	}
	s, err := g.mirror.RefreshHosts(ctx, nil, model)
	if err != nil || !g.wantsForBatch(v, s, model) {
		return
	}
	if free, leftover := roomFor(v, s, model); !free {
		if len(s.Copies(model)) == 0 {
			g.unloadLeftover(ctx, s, leftover)
		}
		return
	}
	charged := false
	mayLoad := func(p policy.Placement) bool {
		charged = p.Reason.Code == policy.FreeSlot && account.CountLoad() == nil
		return charged
	}
	if got, ok := g.queueCopy(ctx, s, v.Pool(s), v.Model(s, model, ""), mayLoad, "background", map[string]string{state.FieldNoEvict: "1"}); ok {
		g.log.Info("model is loaded for a batch, because there is room", "model", model, "host", got.Host)
	} else if charged {
		account.ReturnLoad()
	}
}

// wantsForBatch reports whether a line of a batch wants a copy of a model: it has none, or they are full and another is
// allowed.
func (g *Gate) wantsForBatch(v placement.View, s *state.Snapshot, model string) bool {
	copies := s.Copies(model)
	if len(copies) == 0 {
		return hostOf(s, model) == ""
	}
	loads := make([]policy.CopyLoad, 0, len(copies))
	for _, r := range copies {
		f := g.traffic.of(r.Host, model)
		loads = append(loads, policy.CopyLoad{Open: int(f.open.Load() + f.background.Load()), Parallel: r.Plan().Parallel})
	}
	slices.SortFunc(loads, func(a, b policy.CopyLoad) int { return cmp.Compare(a.Queued(), b.Queued()) })
	return loads[0].Queued() > 0 && policy.WantCopy(v.Pool(s), v.Model(s, model, ""), loads) > 0
}

// roomFor reports whether a host that is awake has room for a model, or returns a copy that makes room and without which
// one would.
func roomFor(v placement.View, s *state.Snapshot, model string) (free bool, leftover state.CopyID) {
	pool, want := v.Pool(s), v.Model(s, model, "")
	isFree := func(hosts ...policy.Host) bool {
		return policy.Place(policy.Snapshot{Now: pool.Now, Hosts: hosts}, want, nil).Reason.Code == policy.FreeSlot
	}
	if isFree(pool.Hosts...) {
		return true, leftover
	}
	for _, h := range pool.Hosts {
		all := h.Residents
		for i, r := range all {
			if rec := s.Hosts[h.Name].Models[r.ID]; r.State != policy.ModelLoaded || rec.Retired != "" || rec.Fields[state.FieldMakesRoom] != "1" {
				continue
			}
			if h.Residents = slices.Delete(slices.Clone(all), i, i+1); isFree(h) {
				return false, state.CopyID{Host: h.Name, Model: r.ID}
			}
		}
	}
	return false, leftover
}

// unloadLeftover queues the unload of a copy that makes room, which its runner refuses if the copy is in use.
func (g *Gate) unloadLeftover(ctx context.Context, s *state.Snapshot, leftover state.CopyID) {
	if leftover.Model == "" || time.Since(g.leftoverTried) < leftoverEvery {
		return
	}
	g.leftoverTried = time.Now()
	_, err := g.store.Acquire(ctx, state.Want{
		Gateway: g.id, Model: leftover.Model, Unload: true, Host: leftover.Host, Revision: s.RevisionOf(leftover.Host, ""), Unattended: true,
		Fields: map[string]string{state.FieldUnusedMS: strconv.FormatInt(leftoverIdle.Milliseconds(), 10)},
	})
	if err != nil && !errors.Is(err, state.ErrStale) {
		g.log.Warn("a model that a batch has left could not be unloaded", "model", leftover.Model, "host", leftover.Host, "error", err)
	}
}
