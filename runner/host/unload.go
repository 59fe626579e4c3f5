package host

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"reveille/infra/rpc"
	"reveille/infra/state"
)

// errorEventGrace is how long cut requests may take to send their error event before their engine is stopped.
const errorEventGrace = 2 * time.Second

// drainTimeout returns how long the open requests of a model being unloaded may run.
func (h *Host) drainTimeout(force bool) time.Duration {
	if force {
		return 0
	}
	return h.cfg.DrainTimeout
}

// answerUnload handles an unload ticket. It refuses the ticket at once when there is nothing to unload, leaves it in
// the queue while the model is loading, and otherwise carries it out without waiting for the queue. Retired copies of the model are
// unloaded too, unless the ticket is for an idle model.
func (h *Host) answerUnload(ctx context.Context, t state.TicketRecord) {
	copies := h.copies(t.Model)
	if t.Fields["only_idle_ms"] != "" {
		copies = slices.DeleteFunc(copies, (*resident).retired) // only this goroutine retires
	}
	switch {
	case len(copies) == 0:
		h.reportNow(ctx, t, failure(&Error{Code: rpc.CodeModelNotLoaded, Message: "model " + t.Model + " is not loaded"}))
	case h.isStarting(t.Model):
	default:
		h.markInProgress(t.ID)
		switch err := h.begin(ctx, t.ID, state.NPUSeat{}); {
		case err == nil:
			h.startUnload(ctx, &t, h.drainTimeout(t.Force), copies...)
		case endedTicket(err):
			h.endInProgress(t.ID)
		default:
			h.unmarkInProgress(t.ID)
		}
	}
}

// startUnload unloads copies of models without waiting for the queue: open requests may finish, for at most limit, and are then cut.
// t, if not nil, gets the outcome once all copies are gone. A ticket with only_idle_ms unloads only a model that has
// been idle that long. None of the copies may be loading. Several calls may unload one copy at once: the shortest limit
// counts.
func (h *Host) startUnload(ctx context.Context, t *state.TicketRecord, limit time.Duration, copies ...*resident) {
	h.mu.Lock()
	busy := func(r *resident) bool { return t != nil && r.isLoaded() && !r.idleFor(t.Fields["only_idle_ms"]) }
	if i := slices.IndexFunc(copies, busy); i >= 0 {
		h.mu.Unlock()
		h.reportOutcome(ctx, ticketOutcome{ticket: t.ID, out: failure(&Error{Code: rpc.CodeModelBusy, Message: "model " + copies[i].id + " is in use"})})
		return
	}
	for _, r := range copies {
		r.to(draining)
	}
	h.mu.Unlock()
	h.publishDirty(ctx)
	ctx = context.WithoutCancel(ctx)
	h.work.Go(func() {
		errs := make([]error, len(copies))
		var wg sync.WaitGroup
		for i, r := range copies {
			wg.Go(func() {
				if errs[i] = h.unload(ctx, r, limit); errs[i] != nil {
					h.log.Error("engine does not stop", "model", r.id, "error", errs[i])
				}
			})
		}
		wg.Wait()
		out := state.Outcome{Fields: map[string]string{}}
		if errors.Join(errs...) != nil {
			out = failure(&Error{Code: rpc.CodeEngineCrashed, Message: "model " + copies[0].id + " does not stop"})
		}
		if t != nil {
			h.reportOutcome(ctx, ticketOutcome{ticket: t.ID, out: out})
		}
		h.notify()
	})
}

// UnloadSuspect unloads an engine that can no longer be trusted. The next request for its model loads it again. UnloadSuspect
// ignores an engine that is no longer the model's or is already being stopped. It returns when the model takes no new
// request, and does not wait for the unload.
func (h *Host) UnloadSuspect(model string, e Engine, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.residents[model]
	if h.draining || r == nil || r.engine != e || !r.isLoaded() {
		return
	}
	r.to(draining)
	r.reason = reason
	h.work.Go(func() { h.startUnload(context.Background(), nil, h.cfg.DrainTimeout, r) }) // not draining: the shutdown does not wait yet
}

// idleFor reports whether the model has been idle for ms milliseconds; "" sets no condition.
func (r *resident) idleFor(ms string) bool {
	if ms == "" {
		return true
	}
	n, err := strconv.ParseInt(ms, 10, 64)
	return err == nil && !r.busy() && !r.pinned && time.Since(r.used) >= time.Duration(n)*time.Millisecond
}

// unload waits for the open requests of a closed model and stops it.
func (h *Host) unload(ctx context.Context, r *resident, limit time.Duration) error {
	limited, cancel := h.interruptLimit(ctx, limit)
	err := h.awaitIdle(limited, r)
	cancel()
	if err != nil {
		h.log.Warn("open requests are cut", "model", r.id, "limit", limit, "reason", err)
		h.cutAll(r, err)
		wait, cancel := context.WithTimeout(ctx, errorEventGrace)
		_ = h.awaitIdle(wait, r) // requests that notice write their last event; the rest die with the engine
		cancel()
	}
	return h.stop(ctx, r, "unloaded", false)
}

// stop ends the engine of a closed model that is not busy, and returns when its slot is free. An engine that cannot be
// ended keeps its slot.
func (h *Host) stop(ctx context.Context, r *resident, reason string, eviction bool) error {
	h.mu.Lock()
	r.to(stopping)
	if r.reason == "" {
		r.reason, r.eviction = reason, eviction
	}
	h.mu.Unlock()
	h.measure(r)
	if err := r.engine.Stop(ctx); err != nil {
		return err
	}
	select {
	case <-r.gone: // its watch also saw the end
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// watch frees the slot of an engine that has ended, whatever ended it.
func (h *Host) watch(ctx context.Context, r *resident, e Engine) {
	select {
	case <-e.Done():
	case <-h.givenUp.Done(): // the runner ends; an engine that does not end is left alone
		return
	}
	h.mu.Lock()
	crashed := r.reason == ""
	if crashed {
		r.reason = "engine died"
		h.stats.Crashes++
		if r.loadPin != nil {
			h.crashedPins[r.id] = r.loadPin
		}
	}
	r.to(stopping)
	clear(r.reservations) // it serves nobody any more; its waiters request another load
	h.notifyIdleLocked(r)
	p := r.plan
	h.mu.Unlock()
	if crashed {
		h.log.Error("engine died", "model", r.id, "error", e.Err())
		h.raiseNeed(p, r.recipe, e.Err())
	}
	h.freeSlot(ctx, r)
}

// freeSlot frees the slot of a model whose process is gone, once. It deletes the record before a new copy can have one.
func (h *Host) freeSlot(ctx context.Context, r *resident) {
	h.redisMu.Lock()
	h.mu.Lock()
	delete(h.residents, r.key)
	reason, eviction := r.reason, r.eviction
	if eviction {
		h.stats.Evictions++
	}
	h.mu.Unlock()
	h.log.Info("model unloaded", "model", r.id, "reason", reason)
	h.written = time.Now()
	if !h.stale {
		h.noteWriteErrorLocked(h.store.DropModel(ctx, h.cfg.Name, h.generation, r.key, reason, eviction))
	}
	h.redisMu.Unlock()
	close(r.gone)
	h.notify()
}
