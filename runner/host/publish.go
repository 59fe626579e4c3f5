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

// ticketOutcome is a ticket's outcome and what to do with the ticket's waiters.
type ticketOutcome struct {
	ticket  string
	out     state.Outcome
	reserve *resident // the model to reserve for the ticket's waiters, nil for none
	// explicit: the ticket was an explicit load, which no request follows.
	explicit bool
}

// writableGeneration returns the generation for writes, 0 while nothing may be written.
func (h *Host) writableGeneration() uint64 {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.mustRegister {
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
	if err == nil || isTicketGone(err) || errors.Is(err, state.ErrNeeded) {
		return
	}
	h.mustRegister = true
	h.fenced = h.fenced || errors.Is(err, state.ErrFenced)
}

// beginTicket takes a ticket out of the queue in Redis, with an NPU seat for its load. If other models hold the seat,
// Redis lacks some of this host's state, and the host registers again.
func (h *Host) beginTicket(ctx context.Context, ticket string, seat state.NPUSeat) error {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.mustRegister {
		return errNotRegistered
	}
	err := h.store.Begin(ctx, h.cfg.Name, h.generation, ticket, seat)
	h.noteWriteErrorLocked(err)
	return err
}

// repairTicket handles a ticket that Redis shows as loading here although it is not, because a failover lost its
// outcome. A new registration returns it to the queue.
func (h *Host) repairTicket(ticket string, seen time.Time) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.mustRegister {
		return
	}
	if seen.After(h.registered.Add(snapshotLag)) {
		h.log.Warn("Redis shows a load in progress that this host does not have, registering again", "ticket", ticket)
		h.mustRegister = true
	} else {
		h.recheckMirror.Store(true)
	}
}

// compareRecords makes the host register again when its models differ from those in Redis: a failover restored an older
// state with the same generation. seen is when the records were read.
func (h *Host) compareRecords(records map[string]*state.ModelRecord, seen time.Time) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.mustRegister {
		return
	}
	h.mu.Lock()
	same := true
	for id := range records {
		same = same && h.residents[id] != nil
	}
	for id, r := range h.residents {
		rec := records[id]
		same = same && (r.dirty || rec != nil && (r.engine == nil || rec.PID == r.engine.PID()))
	}
	h.mu.Unlock()
	switch certain := seen.After(h.written.Add(snapshotLag)); {
	case !same && !certain:
		h.recheckMirror.Store(true)
	case !same:
		h.log.Warn("Redis and this host disagree on the loaded models, registering again")
		h.mustRegister = true
	}
}

// recordLocked returns a resident's record for Redis. It includes the last use if that was not reported yet, or withUse
// is set.
func (h *Host) recordLocked(r *resident, withUse bool) state.ModelPut {
	f := map[string]string{
		"state": string(policy.ModelDraining), "type": string(r.model.Type), "recipe": r.recipe.Name, "device": r.model.Devices.String(),
		"checkpoint": r.model.Checkpoint, "in_flight": strconv.Itoa(len(r.open)), "pinned": "0", "load_pin": "0", "memory": strconv.FormatInt(r.memory, 10),
		"options": r.options.Canonical(), "ticket": r.ticket, state.FieldMakesRoom: state.FormatBool(r.makesRoom),
	}
	if withUse || r.used.After(r.reported) {
		f["used_age_ms"] = strconv.FormatInt(time.Since(r.used).Milliseconds(), 10)
		r.reported, r.inRedis = r.used, time.Time{}
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
	if r.isRetired() {
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

// publishDirty writes the records that changed. The next registration repeats the write if it fails.
func (h *Host) publishDirty(ctx context.Context) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	h.publishDirtyLocked(ctx)
}

// publishDirtyLocked is publishDirty for callers that hold redisMu.
func (h *Host) publishDirtyLocked(ctx context.Context) {
	if h.mustRegister {
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
	if !h.mustRegister {
		err := h.publishOutcomeLocked(ctx, e)
		if err == nil {
			return
		}
		h.noteWriteErrorLocked(err)
	}
	h.unsentOutcomes = append(h.unsentOutcomes, e)
}

// publishOutcomeLocked publishes a ticket's outcome together with the records that changed, and reserves the model for
// the remaining waiters. redisMu is held.
func (h *Host) publishOutcomeLocked(ctx context.Context, e ticketOutcome) error {
	e.out.Models = h.takeDirtyLocked()
	waiting, err := h.store.Finish(ctx, h.cfg.Name, h.generation, e.ticket, e.out)
	if err != nil && !errors.Is(err, state.ErrGone) {
		return err
	}
	h.markReported(e.ticket)
	if e.reserve != nil {
		if e.explicit {
			waiting = nil
		}
		h.reserveFor(e.reserve, e.ticket, waiting)
	}
	return nil
}

// reportNow reports the outcome of a ticket that needs no work.
func (h *Host) reportNow(ctx context.Context, t state.TicketRecord, out state.Outcome) {
	h.markInProgress(t.ID)
	h.reportOutcome(ctx, ticketOutcome{ticket: t.ID, out: out})
}
