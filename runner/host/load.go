package host

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"reveille/infra/policy"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/engine"
	"reveille/runner/plan"
)

// load is the one load in progress on the host.
type load struct {
	ticket     state.TicketRecord
	spec       loadSpec
	overtakes  []string
	gpus       engine.GPUs // which GPUs the engine must use
	recorded   bool        // guarded by Host.mu: Redis shows it as the load in progress
	victims    []*resident // stopped before the engine starts
	claimed    []*resident // guarded by Host.mu: victims, and models closed to clear the host
	started    time.Time
	evicted    []string
	needRaised bool // its engine ran out of memory; spec has the raised need
}

// startLoadLocked makes this the host's current load and closes its victims, in the same critical section that chose
// them. From then on a request for a victim queues behind this load.
func (h *Host) startLoadLocked(q queuedLoad, s policy.QueueDecision) *load {
	l := &load{ticket: q.ticket, spec: q.spec, overtakes: s.Overtakes, started: time.Now()}
	l.spec.gpuMemory = s.Admission.GPUMemory
	if l.spec.gpuMemory != nil {
		l.spec.plan.GPUs = slices.Sorted(maps.Keys(l.spec.gpuMemory))
	}
	l.gpus = h.selectGPUsLocked(l.spec.gpuMemory)
	for _, id := range s.Admission.Evict {
		l.victims = append(l.victims, h.residents[id])
	}
	l.claimLocked(l.victims)
	h.loading = l
	h.markInProgressLocked(q.ticket.ID)
	return l
}

// selectGPUsLocked returns the settings that restrict an engine to a load's GPUs. The zero value lets it use any.
func (h *Host) selectGPUsLocked(gpus policy.GPUMemory) engine.GPUs {
	if gpus == nil {
		return engine.GPUs{}
	}
	g := engine.GPUs{Count: len(gpus)}
	g.Env, g.Names = h.hardware.Found.Select(gpus)
	return g
}

// claimLocked closes models until the load ends or they are gone.
func (l *load) claimLocked(list []*resident) {
	for _, r := range list {
		r.setStatus(claimed)
	}
	l.claimed = append(l.claimed, list...)
}

// endLoadLocked allows the next load. Models that this load closed but did not stop take requests again.
func (h *Host) endLoadLocked(l *load) {
	h.loading = nil
	for _, r := range l.claimed {
		if r.status == claimed {
			r.setStatus(serving)
		}
	}
}

// runLoad performs the load that startLoadLocked has begun.
func (h *Host) runLoad(ctx context.Context, l *load) {
	defer h.notify()
	if err := h.beginTicket(ctx, l.ticket.ID, h.npuSeat(l)); err != nil {
		h.dropLoad(ctx, l, err)
		return
	}
	h.mu.Lock()
	l.recorded = true
	for _, id := range l.overtakes {
		if h.waits[id] == nil {
			h.waits[id] = &ticketWait{}
		}
		h.waits[id].overtaken++
	}
	h.mu.Unlock()
	m := l.spec.model
	h.log.Info("load started", "model", m.ID, "ticket", l.ticket.ID, "evicts", ids(l.victims))
	err := h.cfg.Engines.Check(h.life, m, l.spec.recipe, l.spec.options) // before anything makes room for it
	if err == nil {
		err = h.evictAll(l, l.victims, "evicted for "+m.ID)
	}
	var r *resident
	if err == nil {
		r = l.spec.newResident(l.ticket.ID)
		h.mu.Lock()
		delete(h.crashedPins, r.id)
		h.residents[r.key] = r
		h.mu.Unlock()
		h.publishDirty(ctx)
		if err = h.startWithRetry(ctx, l, r); err != nil {
			h.mu.Lock()
			r.stopReason = "load failed"
			h.mu.Unlock()
			h.freeSlot(ctx, r)
		}
	}
	h.endLoad(ctx, l, r, err)
}

// dropLoad drops a load that could not start because its ticket is gone from Redis or Redis is unavailable.
func (h *Host) dropLoad(ctx context.Context, l *load, err error) {
	h.log.Info("load dropped before it started", "model", l.spec.model.ID, "ticket", l.ticket.ID, "reason", err)
	h.mu.Lock()
	h.endLoadLocked(l)
	h.stats.Dropped++
	if isTicketGone(err) {
		h.inProgress[l.ticket.ID] = time.Now()
	} else {
		delete(h.inProgress, l.ticket.ID)
	}
	h.mu.Unlock()
	h.publishDirty(ctx)
}

// npuSeat returns the NPU seat that a load needs.
func (h *Host) npuSeat(l *load) state.NPUSeat {
	m := l.spec.model
	if !m.Devices.Has(policy.NPU) {
		return state.NPUSeat{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	seat := state.NPUSeat{Seats: 1}
	if seats := h.seatsLocked(); len(seats) > 0 {
		seat.Seats, seat.Type = seats[m.Type], string(m.Type)
	}
	for _, r := range l.victims {
		seat.Leaving = append(seat.Leaving, r.key)
	}
	return seat
}

// evictAll stops the given models, which the load has claimed, one after the other, and waits for each process to end.
// It waits for busy models for at most Config.ClearTimeout.
func (h *Host) evictAll(l *load, list []*resident, reason string) error {
	ctx, cancel := context.WithTimeout(h.life, h.cfg.ClearTimeout)
	defer cancel()
	for _, r := range list {
		if err := h.awaitIdle(ctx, r); err != nil {
			return &Error{Code: rpc.CodeModelBusy, Message: "model " + r.id + " stayed busy and could not make room", Cause: err}
		}
		reload := r.id == l.spec.model.ID
		if err := h.stop(ctx, r, reason, !reload); err != nil {
			return &Error{Code: rpc.CodeModelLoadError, Message: "model " + r.id + " could not be stopped to make room", Cause: err}
		}
		if !reload {
			l.evicted = append(l.evicted, r.id)
		}
	}
	return nil
}

// startWithRetry starts the engine. If that fails for lack of memory or without a known cause, it clears the host and
// tries once more (rule 6).
func (h *Host) startWithRetry(ctx context.Context, l *load, r *resident) error {
	err := h.startEngine(ctx, l, r)
	if err == nil || l.ticket.NoEvict || !clearingHelps(err) || !h.mayClear(l.spec) || h.life.Err() != nil {
		return err
	}
	h.log.Warn("load failed, clearing the host for one more try", "model", r.id, "error", err)
	if err := h.clearHost(ctx, l, r); err != nil {
		return err
	}
	if err = h.startEngine(ctx, l, r); err != nil && h.life.Err() == nil {
		h.mu.Lock()
		h.noClearUntil[l.spec.digest] = time.Now().Add(noClearTime)
		h.mu.Unlock()
	}
	return err
}

// startEngine starts the engine once.
func (h *Host) startEngine(ctx context.Context, l *load, r *resident) error {
	start := time.Now()
	e, err := h.cfg.Engines.Start(h.life, l.spec.model, l.spec.recipe, l.spec.options, l.spec.plan, l.gpus)
	if err != nil {
		if need := h.raiseNeed(l.spec.plan, l.spec.recipe, err); need > 0 {
			l.spec.memory, l.spec.plan.Need, l.spec.plan.NeedSource = need, need, plan.FromOOM
			l.needRaised = true
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.stats.LoadFailures++
		return err
	}
	taken := e.Measured()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Loads++
	r.engine, r.loadTime, r.loaded = e, time.Since(start), time.Now()
	r.makesRoom = l.ticket.NoEvict
	r.needed = r.loaded
	h.measureLocked(r, taken)
	r.reserveLocked(l.ticket) // not evicted before its waiters are known
	r.setStatus(serving)
	h.watches.Go(func() { h.watch(ctx, r, e) })
	return nil
}

// clearHost empties the host after a failed load: idle models first, busy ones as they become idle.
func (h *Host) clearHost(ctx context.Context, l *load, failed *resident) error {
	h.mu.Lock()
	h.stats.Clears++
	var list []*resident
	idle, busy := policy.ClearAll(h.viewLocked(nil), failed.id)
	for _, id := range append(idle, busy...) {
		list = append(list, h.residents[id])
	}
	idleModels, busyModels := list[:len(idle)], list[len(idle):]
	l.claimLocked(idleModels)
	h.mu.Unlock()
	h.publishDirty(ctx)
	reason := "cleared for " + failed.id
	if err := h.evictAll(l, idleModels, reason); err != nil {
		return err
	}
	h.closeWhenIdle(l, busyModels)
	h.publishDirty(ctx)
	return h.evictAll(l, busyModels, reason)
}

// closeWhenIdle closes busy models when all are idle, at the latest after Config.FairAfter. Until then they take new
// requests (rule 4).
func (h *Host) closeWhenIdle(l *load, list []*resident) {
	ctx, cancel := context.WithTimeout(h.life, h.cfg.FairAfter)
	defer cancel()
	for {
		h.mu.Lock()
		at := slices.IndexFunc(list, (*resident).isBusy)
		if at < 0 || ctx.Err() != nil {
			l.claimLocked(list)
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		_ = h.awaitIdle(ctx, list[at])
	}
}

// endLoad publishes the outcome of the load.
func (h *Host) endLoad(ctx context.Context, l *load, r *resident, err error) {
	e := ticketOutcome{ticket: l.ticket.ID, reserve: r, explicit: l.ticket.Options != ""}
	shuttingDown := h.life.Err() != nil
	if err != nil && errors.Is(context.Cause(h.life), ErrInterrupted) {
		err, shuttingDown = errInterruptedLoad, false // the next runner may take long to start: waiters try another host
	}
	h.mu.Lock()
	if err == nil && r.status == stopping && h.life.Err() == nil {
		err = &Error{Code: rpc.CodeEngineCrashed, Message: "the engine of model " + r.id + " exited as soon as it was loaded"}
	}
	h.mu.Unlock()
	if err == nil {
		if l.spec.plan.Key != "" {
			h.mu.Lock()
			next, _ := h.nextNeedLocked(r)
			l.spec.memory, l.spec.plan.Need, l.spec.plan.NeedSource = next.bytes, next.bytes, plan.FromMeasurement
			if next.bytes == l.spec.plan.Estimate {
				l.spec.plan.NeedSource = plan.FromEstimate
			}
			h.mu.Unlock()
		}
		e.out = state.Outcome{
			Fields:  map[string]string{"load_ms": strconv.FormatInt(time.Since(l.started).Milliseconds(), 10), "cold": "1"},
			Learned: h.learn(l.spec, l.spec.model.Devices),
		}
		h.log.Info("load done", "model", r.id, "ms", time.Since(l.started).Milliseconds(), "evicted", l.evicted)
	} else {
		e.out, e.reserve = failure(err), nil
		if l.needRaised {
			e.out.Learned = h.learn(l.spec, l.spec.model.Devices)
		}
		h.log.Error("load failed", "model", l.spec.model.ID, "error", err)
	}
	if len(l.evicted) > 0 {
		e.out.Fields["evicted"] = strings.Join(l.evicted, ",")
	}
	if err == nil || !shuttingDown { // otherwise the runner stops, and the ticket returns to the queue for the next runner
		h.reportOutcome(ctx, e)
	}
	if err == nil {
		h.recordNeed(r)
	}
	h.mu.Lock()
	h.endLoadLocked(l)
	h.mu.Unlock()
	h.publishDirty(ctx)
}

func ids(list []*resident) []string {
	out := make([]string, len(list))
	for i, r := range list {
		out[i] = r.id
	}
	return out
}
