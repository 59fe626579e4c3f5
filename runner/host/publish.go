package host

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// ticketOutcome is a ticket's outcome.
type ticketOutcome struct {
	ticket  string
	out     state.Outcome
	reserve *resident // the model to reserve for the ticket's waiters, nil for none
	// explicit: the waiters want only the outcome, as after an explicit load; no request follows.
	explicit bool
}

// writableGeneration returns the generation to write with, 0 while nothing may be written.
func (h *Host) writableGeneration() uint64 {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.stale {
		return 0
	}
	return h.generation
}

// noteWriteError records that Redis may lack something, so that the next beat registers again.
func (h *Host) noteWriteError(err error) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	h.noteWriteErrorLocked(err)
}

// noteWriteErrorLocked is noteWriteError for callers that hold redisMu.
func (h *Host) noteWriteErrorLocked(err error) {
	if err == nil || endedTicket(err) {
		return
	}
	h.stale = true
	h.fenced = h.fenced || errors.Is(err, state.ErrFenced)
}

// begin takes a ticket out of the queue in Redis, and a seat of the NPU for its load. If that is held by others, Redis has not
// what this host has, which then registers again.
func (h *Host) begin(ctx context.Context, ticket string, seat state.NPUSeat) error {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.stale {
		return errStale
	}
	err := h.store.Begin(ctx, h.cfg.Name, h.generation, ticket, seat)
	h.noteWriteErrorLocked(err)
	return err
}

// returnTicket makes Redis take back a ticket that it shows as loading here but that is not, because a failover lost its
// outcome.
func (h *Host) returnTicket(ticket string, seen time.Time) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.stale {
		return
	}
	if seen.After(h.registered.Add(snapshotLag)) {
		h.log.Warn("Redis has a load in progress that this host does not, registering again", "ticket", ticket)
		h.stale = true
	} else {
		h.recheckMirror.Store(true)
	}
}

// compareRecords makes the host register again when Redis holds other models for it than it has: a failover restored an
// older state with the same generation. seen is when the records were read.
func (h *Host) compareRecords(records map[string]*state.ModelRecord, seen time.Time) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.stale {
		return
	}
	h.mu.Lock()
	same := len(records) == len(h.residents)
	for id, r := range h.residents {
		rec := records[id]
		same = same && (r.dirty || rec != nil && (r.engine == nil || rec.PID == r.engine.PID()))
	}
	h.mu.Unlock()
	switch sure := seen.After(h.written.Add(snapshotLag)); {
	case !same && !sure:
		h.recheckMirror.Store(true)
	case !same:
		h.log.Warn("Redis and this host disagree on the loaded models, registering again")
		h.stale = true
	}
}

// recordLocked returns a resident's record for Redis, with its last use if Redis was not told of it yet, or in any case.
func (h *Host) recordLocked(r *resident, withUse bool) state.ModelPut {
	f := map[string]string{
		"state": string(policy.ModelDraining), "type": string(r.model.Type), "recipe": r.recipe.Name, "device": r.model.Devices.String(),
		"checkpoint": r.model.Checkpoint, "in_flight": strconv.Itoa(len(r.open)), "pinned": "0", "load_pin": "0", "memory": strconv.FormatInt(r.memory, 10),
		"options": r.options.Canonical(), "ticket": r.ticket,
	}
	if withUse || r.used.After(r.told) {
		f["used_age_ms"] = strconv.FormatInt(time.Since(r.used).Milliseconds(), 10)
		r.told, r.inRedis = r.used, time.Time{}
	}
	if raw, err := json.Marshal(r.plan); err == nil {
		f["plan"] = string(raw)
	}
	if r.gpuMemory != nil {
		f["cards"] = placement.FormatMemory(nil, r.gpuMemory)
	}
	if r.status == starting || r.status == serving {
		f["state"] = string(r.modelState())
	}
	if r.pinned {
		f["pinned"] = "1"
	}
	if r.loadPin != nil {
		f["load_pin"] = "1"
	}
	if r.retired() {
		f["retired"] = r.id
	}
	if r.engine != nil {
		f["pid"] = strconv.Itoa(r.engine.PID())
		f["backend_url"] = r.engine.BaseURL() + "/v1"
		f["cmd"] = r.engine.Command()
		f["loaded_ms"] = strconv.FormatInt(r.loaded.UnixMilli(), 10)
		f["load_ms"] = strconv.FormatInt(r.loadTime.Milliseconds(), 10)
	}
	return state.ModelPut{ID: r.key, Fields: f}
}

// publishDirty writes the records that changed. The next registration writes those that Redis does not accept.
func (h *Host) publishDirty(ctx context.Context) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	h.publishDirtyLocked(ctx)
}

// publishDirtyLocked is publishDirty for callers that hold redisMu.
func (h *Host) publishDirtyLocked(ctx context.Context) {
	if h.stale {
		return
	}
	if models := h.takeDirtyLocked(); len(models) > 0 {
		h.noteWriteErrorLocked(h.store.PutModels(ctx, h.cfg.Name, h.generation, models))
	}
}

// takeDirtyLocked returns the records to write now. redisMu is held.
func (h *Host) takeDirtyLocked() (models []state.ModelPut) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.residents {
		if r.dirty {
			r.dirty = false
			models = append(models, h.recordLocked(r, false))
		}
	}
	if len(models) > 0 {
		h.written = time.Now()
	}
	return models
}

// reportOutcome reports a ticket's outcome to Redis, now or with the next registration.
func (h *Host) reportOutcome(ctx context.Context, e ticketOutcome) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if !h.stale {
		err := h.publishOutcomeLocked(ctx, e)
		if err == nil {
			return
		}
		h.noteWriteErrorLocked(err)
	}
	h.unsentOutcomes = append(h.unsentOutcomes, e)
}

// publishOutcomeLocked publishes a ticket's outcome together with the records that changed, and reserves the model for the
// remaining waiters. redisMu is held.
func (h *Host) publishOutcomeLocked(ctx context.Context, e ticketOutcome) error {
	e.out.Models = h.takeDirtyLocked()
	waiting, err := h.store.Finish(ctx, h.cfg.Name, h.generation, e.ticket, e.out)
	if err != nil && !errors.Is(err, state.ErrGone) {
		return err
	}
	h.endInProgress(e.ticket)
	if e.reserve != nil {
		if e.explicit {
			waiting = nil
		}
		h.reserveFor(e.reserve, e.ticket, waiting)
	}
	return nil
}

// reportNow ends a ticket that needs no work.
func (h *Host) reportNow(ctx context.Context, t state.TicketRecord, out state.Outcome) {
	h.markInProgress(t.ID)
	h.reportOutcome(ctx, ticketOutcome{ticket: t.ID, out: out})
}
