package host

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"reveille/infra/policy"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// errorEventGrace is the time for cut requests to send their error event before their engine is stopped.
const errorEventGrace = 2 * time.Second

// drainTimeout returns the time left to the open requests of a model being unloaded.
func (h *Host) drainTimeout(force bool) time.Duration {
	if force {
		return 0
	}
	return h.cfg.DrainTimeout
}

// handleUnload handles an unload ticket. It refuses the ticket if there is nothing to unload, leaves it in the queue
// while the model is loading, and otherwise starts the unload without waiting for the queue. Retired copies of the
// model are unloaded too, unless the ticket is for an idle model. A copy that a later ticket loaded is left
// alone: this unload is an old one that came back when Redis was restored. A ticket with spare_ms retires the copy
// instead, if it has not been needed for that long and Redis knows another one that serves.
func (h *Host) handleUnload(ctx context.Context, t state.TicketRecord) {
	copies := slices.DeleteFunc(h.copies(t.Model), func(r *resident) bool { return state.ParseNumber(r.ticket) > state.ParseNumber(t.ID) })
	spare := t.Fields["spare_ms"]
	if t.Fields["only_idle_ms"]+t.Fields[state.FieldUnusedMS]+spare != "" {
		copies = slices.DeleteFunc(copies, (*resident).isRetired) // only this goroutine retires
	}
	switch {
	case len(copies) == 0:
		h.reportNow(ctx, t, failure(&Error{Code: rpc.CodeModelNotLoaded, Message: "model " + t.Model + " is not loaded"}))
	case h.isStarting(t.Model):
	case spare != "" && !h.isSpare(copies[0], spare):
		h.reportNow(ctx, t, copyNeeded(t))
	default:
		h.markInProgress(t.ID)
		switch err := h.beginTicket(ctx, t.ID, state.NPUSeat{}); {
		case errors.Is(err, state.ErrNeeded):
			h.reportOutcome(ctx, ticketOutcome{ticket: t.ID, out: copyNeeded(t)})
		case err == nil && spare != "": // its open requests can take long: the ticket does not wait for them
			h.retire(ctx, copies[0], "the other copies can serve its requests")
			h.reportOutcome(ctx, ticketOutcome{ticket: t.ID, out: state.Outcome{Fields: map[string]string{}}})
		case err == nil:
			h.startUnload(ctx, &t, h.drainTimeout(t.Force), copies...)
		case isTicketGone(err):
			h.markReported(t.ID)
		default:
			h.forgetTicket(t.ID)
		}
	}
}

// startUnload begins to unload copies of models: their open requests can finish within limit and are then cut.
// The ticket t, if not nil, gets the outcome once all copies are gone, or if its condition does not hold. None of the
// copies may be loading. Several calls can unload one copy at the same time: the shortest limit counts.
func (h *Host) startUnload(ctx context.Context, t *state.TicketRecord, limit time.Duration, copies ...*resident) {
	h.mu.Lock()
	busy := func(r *resident) bool { return t != nil && r.isLoaded() && !r.meets(t) }
	if i := slices.IndexFunc(copies, busy); i >= 0 {
		h.mu.Unlock()
		h.reportOutcome(ctx, ticketOutcome{ticket: t.ID, out: failure(&Error{Code: rpc.CodeModelBusy, Message: "model " + copies[i].id + " is in use"})})
		return
	}
	for _, r := range copies {
		r.setStatus(leaving)
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

// isSpare reports whether the copy has not been needed for ms milliseconds.
func (h *Host) isSpare(r *resident, ms string) bool {
	n, err := strconv.ParseInt(ms, 10, 64)
	h.mu.Lock()
	defer h.mu.Unlock()
	return err == nil && r.status == serving && len(r.reservations) == 0 && !r.pinned && time.Since(r.needed) >= time.Duration(n)*time.Millisecond
}

// copyNeeded is the outcome of a ticket for a copy that is not spare.
func copyNeeded(t state.TicketRecord) state.Outcome {
	return failure(&Error{Code: rpc.CodeModelBusy, Message: "model " + t.Model + " is needed"})
}

// UnloadSuspect unloads a model whose engine can no longer be trusted. The next request for the model loads it again.
// UnloadSuspect ignores an engine that is no longer the model's or is already being stopped. It returns when the model
// takes no new requests, and does not wait for the unload.
func (h *Host) UnloadSuspect(model string, e Engine, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.residents[model]
	if h.draining || r == nil || r.engine != e || !r.isLoaded() {
		return
	}
	r.setStatus(leaving)
	r.stopReason = reason
	h.work.Go(func() { h.startUnload(context.Background(), nil, h.cfg.DrainTimeout, r) }) // the host is not draining, so the shutdown does not wait for work yet
}

// meets reports whether the condition of an unload ticket holds, if it has one: that the model has been idle for
// only_idle_ms, or that it makes room and has served nothing in the background, either, for state.FieldUnusedMS.
func (r *resident) meets(t *state.TicketRecord) bool {
	ms, since := t.Fields["only_idle_ms"], r.used
	if unused := t.Fields[state.FieldUnusedMS]; unused != "" {
		if !r.makesRoom || len(r.background) > 0 {
			return false
		}
		ms, since = unused, policy.Later(r.used, r.usedBehind)
	}
	if ms == "" {
		return true
	}
	n, err := strconv.ParseInt(ms, 10, 64)
	return err == nil && !r.isBusy() && !r.pinned && time.Since(since) >= time.Duration(n)*time.Millisecond
}

// unload waits for the open requests of a closed model and stops it.
func (h *Host) unload(ctx context.Context, r *resident, limit time.Duration) error {
	limited, cancel := h.drainContext(ctx, limit)
	err := h.awaitIdle(limited, r)
	cancel()
	if err != nil {
		h.log.Warn("cutting open requests", "model", r.id, "limit", limit, "reason", err)
		h.cutAll(r, err)
		wait, cancel := context.WithTimeout(ctx, errorEventGrace)
		_ = h.awaitIdle(wait, r) // requests that notice send their error event; the others end with the engine
		cancel()
	}
	return h.stop(ctx, r, "unloaded", false)
}

// stop stops the engine of a closed model that is not busy, and returns when its slot is free. An engine that does not
// end keeps its slot.
func (h *Host) stop(ctx context.Context, r *resident, reason string, eviction bool) error {
	h.mu.Lock()
	r.setStatus(stopping)
	if r.stopReason == "" {
		r.stopReason, r.evicted = reason, eviction
	}
	cuts := takeCuts(r.background)
	h.mu.Unlock()
	for _, cut := range cuts {
		cut(ErrCut)
	}
	h.measure(r)
	if err := r.engine.Stop(ctx); err != nil {
		return err
	}
	select {
	case <-r.gone: // the engine's watch frees the slot
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// watch waits until an engine ends, for whatever reason, and frees its slot.
func (h *Host) watch(ctx context.Context, r *resident, e Engine) {
	select {
	case <-e.Done():
	case <-h.watchCtx.Done(): // the runner exits and leaves an engine that does not end behind
		return
	}
	h.mu.Lock()
	crashed := r.stopReason == ""
	if crashed {
		r.stopReason = "engine died"
		h.stats.Crashes++
		if r.loadPin != nil {
			h.crashedPins[r.id] = r.loadPin
		}
	}
	r.setStatus(stopping)
	clear(r.reservations) // its waiters request another load
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
	reason, eviction := r.stopReason, r.evicted
	if eviction {
		h.stats.Evictions++
	}
	h.mu.Unlock()
	h.log.Info("model unloaded", "model", r.id, "reason", reason)
	h.written = time.Now()
	if !h.mustRegister {
		h.noteWriteErrorLocked(h.store.DropModel(ctx, h.cfg.Name, h.generation, r.key, reason, eviction))
	}
	h.redisMu.Unlock()
	close(r.gone)
	h.notify()
}
