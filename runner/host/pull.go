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

// Weights fetches the files of models onto the host. It does so before a load is decided. A load that cannot get its
// files therefore evicts nothing, other loads overtake it meanwhile, and its plan and memory need are computed from the
// files.
type Weights interface {
	// HasFiles reports whether a model needs no pull. It checks only this host.
	HasFiles(m *catalog.Model) bool
	// Pull fetches the missing files of a model. It returns in bounded time, or when ctx ends, with errors like those
	// of Engines.Start.
	Pull(ctx context.Context, m *catalog.Model) error
	// Progress returns how many bytes of a model's pull have arrived and their total, 0 while unknown.
	Progress(m *catalog.Model) (done, total int64)
}

// pull is one transfer of a model's weights.
type pull struct {
	model   *catalog.Model
	tickets map[string]struct{} // guarded by Host.mu: loads that wait for it
}

// pullKey identifies what is pulled, so that a corrected entry gets its own pull.
func pullKey(m *catalog.Model) string {
	return m.ID + "\x00" + m.Checkpoint + "\x00" + m.SHA256 + "\x00" + m.MMProj
}

// ensureWeights reports whether the host has the weights that a ticket's load needs. If not, it starts or joins their
// pull, whose failure fails the ticket.
func (h *Host) ensureWeights(ctx context.Context, t state.TicketRecord, m *catalog.Model) bool {
	if h.cfg.Weights == nil || h.cfg.Weights.HasFiles(m) {
		if t.Pulling {
			_ = h.publishPull(ctx, t.ID, nil) // repeated on the next pass if Redis did not accept it
		}
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.inProgress[t.ID]; ok {
		return false // its pull has failed since this pass started
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

// runPull performs a pull and reports its progress to the tickets that wait for it. It continues when none waits any
// more, because the next request will need the files.
func (h *Host) runPull(ctx context.Context, p *pull) {
	done := make(chan error, 1)
	go func() { done <- h.cfg.Weights.Pull(h.life, p.model) }()
	tick := time.NewTicker(h.cfg.Beat)
	defer tick.Stop()
	for {
		h.publishPulls(ctx, p)
		select {
		case err := <-done:
			h.endPull(ctx, p, err)
			return
		case <-tick.C:
		}
	}
}

// endPull lets the waiting loads continue, or fails them.
func (h *Host) endPull(ctx context.Context, p *pull, err error) {
	defer h.notify()
	failed := err != nil && h.life.Err() == nil // otherwise the runner stops, and the next one pulls for the tickets
	h.mu.Lock()
	delete(h.pulls, pullKey(p.model))
	tickets := slices.Sorted(maps.Keys(p.tickets))
	if failed {
		h.stats.LoadFailures++
		for _, id := range tickets {
			h.inProgress[id] = time.Time{} // in the same critical section as the pull's end, or the loop would start another pull
		}
	}
	h.mu.Unlock()
	if !failed {
		return
	}
	h.log.Error("pull failed", "model", p.model.ID, "error", err)
	for _, id := range tickets {
		h.reportOutcome(ctx, ticketOutcome{ticket: id, out: failure(err)})
	}
}

// publishPulls writes a pull's progress to the tickets that wait for it.
func (h *Host) publishPulls(ctx context.Context, p *pull) {
	h.mu.Lock()
	tickets := slices.Sorted(maps.Keys(p.tickets))
	h.mu.Unlock()
	var progress state.Pulled
	progress.Done, progress.Total = h.cfg.Weights.Progress(p.model)
	for _, id := range tickets {
		if errors.Is(h.publishPull(ctx, id, &progress), state.ErrGone) {
			h.mu.Lock()
			delete(p.tickets, id)
			h.mu.Unlock()
		}
	}
}

// publishPull writes the progress of a ticket's pull; nil means that it ended. A failed write is not repeated, because
// the next report replaces it.
func (h *Host) publishPull(ctx context.Context, ticket string, progress *state.Pulled) error {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.mustRegister {
		return errNotRegistered
	}
	return h.store.PutPulled(ctx, h.cfg.Name, h.generation, ticket, progress)
}
