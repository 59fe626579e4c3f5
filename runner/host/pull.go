package host

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/state"
)

// Weights brings the files of models onto the host. That happens before a load is decided on: a load that cannot have its
// files moves nothing aside, other loads pass it meanwhile, and its plan and its need are those of the files themselves.
type Weights interface {
	// There reports whether a model needs no pull. It asks only this host.
	There(m *catalog.Model) bool
	// Pull fetches what a model lacks. It ends in bounded time, and with ctx. Errors are as those of Engines.Start.
	Pull(ctx context.Context, m *catalog.Model) error
	// Progress is how many bytes of a model's pull have come, of how many; of 0 while that is not known.
	Progress(m *catalog.Model) (done, total int64)
}

// pull is the weights of a model on their way.
type pull struct {
	model   *catalog.Model
	tickets map[string]struct{} // guarded by Host.mu: loads that wait for it
}

// pullKey names what is pulled, so that a mended entry has a pull of its own.
func pullKey(m *catalog.Model) string {
	return m.ID + "\x00" + m.Checkpoint + "\x00" + m.SHA256 + "\x00" + m.MMProj
}

// ensureWeights reports whether the weights that a ticket's load needs are there. Where they are not, it sees to it that they
// are pulled, and that the ticket hears if they cannot be.
func (h *Host) ensureWeights(ctx context.Context, t state.TicketRecord, m *catalog.Model) bool {
	if h.cfg.Weights == nil || h.cfg.Weights.There(m) {
		if t.Pulling {
			_ = h.publishPull(ctx, t.ID, nil) // said again at the next look if it was not heard
		}
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, over := h.inProgress[t.ID]; over {
		return false // its pull has failed since the ticket was looked at
	}
	p := h.pulls[pullKey(m)]
	if p == nil {
		p = &pull{model: m, tickets: map[string]struct{}{}}
		h.pulls[pullKey(m)] = p
		h.work.Go(func() { h.runPull(context.WithoutCancel(ctx), p) })
	}
	p.tickets[t.ID] = struct{}{}
	return false
}

// runPull carries a pull out, and tells those who wait for it how far it is. It goes on when nobody waits any more: the
// next to ask will want it.
func (h *Host) runPull(ctx context.Context, p *pull) {
	ended := make(chan error, 1)
	go func() { ended <- h.cfg.Weights.Pull(h.life, p.model) }()
	tick := time.NewTicker(h.cfg.Beat)
	defer tick.Stop()
	for {
		h.publishPulls(ctx, p)
		select {
		case err := <-ended:
			h.endPull(ctx, p, err)
			return
		case <-tick.C:
		}
	}
}

// endPull lets the loads that waited go on, or fails them.
func (h *Host) endPull(ctx context.Context, p *pull, err error) {
	defer h.notify()
	failed := err != nil && h.life.Err() == nil // else the runner stops, and its successor pulls for the tickets
	h.mu.Lock()
	delete(h.pulls, pullKey(p.model))
	tickets := slices.Sorted(maps.Keys(p.tickets))
	if failed {
		h.stats.LoadFailures++
		for _, id := range tickets {
			h.inProgress[id] = time.Time{} // in one step with the end, or the loop would pull for them anew
		}
	}
	h.mu.Unlock()
	if !failed {
		return
	}
	h.log.Error("pull failed", "model", p.model.ID, "error", err)
	for _, id := range tickets {
		h.finish(ctx, ending{ticket: id, out: failure(err)})
	}
}

// publishPulls writes how far a pull is to the tickets that wait for it.
func (h *Host) publishPulls(ctx context.Context, p *pull) {
	h.mu.Lock()
	tickets := slices.Sorted(maps.Keys(p.tickets))
	h.mu.Unlock()
	var far state.Pulled
	far.Done, far.Total = h.cfg.Weights.Progress(p.model)
	for _, id := range tickets {
		if errors.Is(h.publishPull(ctx, id, &far), state.ErrGone) {
			h.mu.Lock()
			delete(p.tickets, id)
			h.mu.Unlock()
		}
	}
}

// publishPull writes how far the pull for a ticket is, nil for over. What Redis does not take is not written later: the next
// word is newer.
func (h *Host) publishPull(ctx context.Context, ticket string, far *state.Pulled) error {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.stale {
		return errStale
	}
	return h.store.PutPulled(ctx, h.cfg.Name, h.generation, ticket, far)
}
