package host

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"reveille/infra/policy"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// A snapshot that is newer than a write by snapshotLag, more than a call's default timeout, shows it for certain.
const snapshotLag = 2 * time.Second

// loop processes the queue until ctx ends. A pass that has started is not interrupted, because its calls use untilEnd.
func (h *Host) loop(ctx, untilEnd context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		changed := h.mirror.Changed()
		again := h.processQueue(untilEnd)
		wait := time.Second // in case events were lost
		if !again.IsZero() {
			wait = min(wait, max(time.Until(again), time.Millisecond))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-h.wake:
		case <-timer.C:
		}
	}
}

// processQueue makes one pass over the queue: it settles the tickets that need no slot and starts the next load. It
// returns the time when a decision would change without an event.
func (h *Host) processQueue(ctx context.Context) time.Time {
	snap := h.mirror.Snapshot()
	me := snap.Hosts[h.cfg.Name]
	if me == nil || isAsleepOrWaking(me) || h.writableGeneration() == 0 || h.refreshSettings(ctx) != nil || h.refreshCatalog(ctx, snap.Catalog) != nil {
		return time.Time{}
	}
	h.retireOutdated(ctx)
	h.publishDirty(ctx)
	h.compareRecords(me.Models, snap.Taken)
	h.dropStaleEntries(me.Queue, snap.Taken)
	if len(me.Queue) > 0 {
		h.readFree(ctx)
	}
	loads := h.handleTickets(ctx, me.Queue, snap)
	if len(loads) > 0 && !h.readUses(ctx) {
		return time.Time{}
	}
	return h.decideLoads(ctx, loads, time.Now())
}

// dropStaleEntries drops bookkeeping that is no longer needed. If Redis accepted a ticket's outcome and then lost it, a
// newer snapshot shows the ticket again, and the host carries it out again.
func (h *Host) dropStaleEntries(queue []state.TicketRecord, seen time.Time) {
	queued := make(map[string]bool, len(queue))
	for _, t := range queue {
		queued[t.ID] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, ended := range h.inProgress {
		if !ended.IsZero() && seen.After(ended.Add(snapshotLag)) {
			delete(h.inProgress, id)
		}
	}
	for id := range h.waits {
		if !queued[id] {
			delete(h.waits, id)
		}
	}
	for id, until := range h.noClearUntil {
		if time.Now().After(until) {
			delete(h.noClearUntil, id)
		}
	}
}

// catalogWait is how long a ticket for a model that is not in the catalog waits for a newer one. A gateway that reads
// a new models file asks for its models a moment before it has published the file.
const catalogWait = 3 * time.Second

// queuedLoad is a load that needs a decision.
type queuedLoad struct {
	ticket state.TicketRecord
	spec   loadSpec
}

// handleTickets settles the tickets that need no slot: unloads, loads of models already loaded, and impossible loads.
// It returns the others in order.
func (h *Host) handleTickets(ctx context.Context, queue []state.TicketRecord, snap *state.Snapshot) []queuedLoad {
	seen := snap.Taken
	now := snap.NowMS + time.Since(seen).Milliseconds()
	var loads []queuedLoad
	for _, t := range queue {
		switch {
		case h.isInProgress(t.ID):
			h.recheckReported(t.ID)
			continue
		case t.State == state.TicketLoading: // Redis shows it as in progress here
			h.repairTicket(t.ID, seen)
			continue
		case t.State != state.TicketQueued:
			continue
		case t.Kind == "unload":
			h.handleUnload(ctx, t)
			continue
		}
		e, err := h.specFor(t)
		if errors.Is(err, errNotInCatalog) && now-t.Created < catalogWait.Milliseconds() {
			continue
		}
		if err != nil {
			h.reportNow(ctx, t, failure(err))
			continue
		}
		if t.PullOnly {
			if h.ensureWeights(ctx, t, e.model) {
				h.reportNow(ctx, t, state.Outcome{Fields: map[string]string{}})
			}
			continue
		}
		if h.isStarting(t.Model) || h.settleIfLoaded(ctx, t, e) {
			continue // the outcome of that load settles the ticket, or already has
		}
		if !h.ensureWeights(ctx, t, e.model) {
			continue // its weights are being pulled
		}
		if t.NoEvict && !h.hasRoom(queuedLoad{t, e}, time.Now()) {
			h.reportNow(ctx, t, failure(&Error{Code: rpc.CodeModelBusy, Message: "there is no room for the model " + t.Model + " beside the others"}))
			continue
		}
		loads = append(loads, queuedLoad{t, e})
	}
	return loads
}

// hasRoom reports whether a load could start now without the end of any model.
func (h *Host) hasRoom(q queuedLoad, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	step := policy.Next(h.viewLocked([]queuedLoad{q}), now, h.cfg.FairAfter)
	return step.Ticket == q.ticket.ID && step.Admission.Decision == policy.DecideLoad && len(step.Admission.Evict) == 0
}

// isStarting reports whether the model's engine is starting.
func (h *Host) isStarting(model string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.residents[model]
	return r != nil && r.status == starting
}

// settleIfLoaded ends a load ticket if its model is already loaded as requested. That counts as a use, and the model is
// reserved for the waiters. A request accepts the model with any options; an explicit load requires its own options.
func (h *Host) settleIfLoaded(ctx context.Context, t state.TicketRecord, e loadSpec) bool {
	h.mu.Lock()
	r := h.residents[t.Model]
	if r == nil || !r.acceptsAll() || t.Options != "" && !r.options.Equal(e.options) {
		h.mu.Unlock()
		return false
	}
	h.markInProgressLocked(t.ID)
	r.reserveLocked(t)
	if !t.NoEvict {
		r.keepLocked()
	}
	if p := requestedPin(t); p != nil {
		r.pinned, r.loadPin, r.dirty = *p, p, true
	}
	loadTime := r.loadTime
	h.mu.Unlock()
	out := state.Outcome{Fields: map[string]string{"load_ms": strconv.FormatInt(loadTime.Milliseconds(), 10), "cold": "0"}}
	h.reportOutcome(ctx, ticketOutcome{ticket: t.ID, out: out, reserve: r, explicit: t.Options != ""})
	return true
}

// decideLoads applies the policy to the loads in order. It returns when to decide again without an event.
func (h *Host) decideLoads(ctx context.Context, loads []queuedLoad, now time.Time) time.Time {
	for {
		h.mu.Lock()
		step := policy.Next(h.viewLocked(loads), now, h.cfg.FairAfter)
		if len(step.Waits) > 0 {
			for _, r := range h.residents {
				if kept := r.keptUntil(); kept.After(now) && (step.Again.IsZero() || kept.Before(step.Again)) {
					step.Again = kept
				}
			}
		}
		for _, w := range step.Waits {
			if w.Unblocked && h.waits[w.Ticket] == nil {
				h.waits[w.Ticket] = &ticketWait{since: now}
			} else if w.Unblocked && h.waits[w.Ticket].since.IsZero() {
				h.waits[w.Ticket].since = now
			}
		}
		h.changeStatusLocked(step.Close, serving, closed)
		h.changeStatusLocked(step.Reopen, closed, serving)
		at := slices.IndexFunc(loads, func(q queuedLoad) bool { return q.ticket.ID == step.Ticket })
		var l *load
		if at >= 0 && step.Admission.Decision == policy.DecideLoad {
			l = h.startLoadLocked(loads[at], step)
		}
		h.mu.Unlock()

		h.publishDirty(ctx)
		switch {
		case at < 0:
			return step.Again
		case l != nil:
			h.work.Go(func() { h.runLoad(context.WithoutCancel(ctx), l) })
		default:
			r := *step.Admission.Refusal
			if r.Others = h.heldByOthers(&r, loads[at].spec.gpus); h.waitsForOthers(step.Ticket, &r, now) {
				break
			}
			out := refusal(r, &loads[at].spec.plan)
			if r.Code == policy.TooLarge {
				out.Learned = h.learn(loads[at].spec, r.Device)
			}
			h.reportNow(ctx, loads[at].ticket, out)
		}
		loads = slices.Delete(loads, at, at+1)
	}
}

// viewLocked returns the host as the policy sees it.
func (h *Host) viewLocked(loads []queuedLoad) policy.Host {
	now := time.Now()
	hw := h.availableLocked()
	v := policy.Host{
		Name: h.cfg.Name, Labels: h.cfg.Labels, State: policy.Ready, Devices: hw.Devices, Limits: h.settings.limits, Budget: hw.Budget, GPUMemory: hw.Cards, NPUSeats: h.seatsLocked(),
	}
	for _, r := range h.residents {
		one := r.view()
		one.Kept, one.Used = now.Before(r.keptUntil()), r.lastUse()
		one.Value = h.cfg.Evict.Value(r.loadTime, h.cfg.Price, time.Since(one.Used))
		v.Residents = append(v.Residents, one)
	}
	if h.loading != nil {
		v.Loading = h.loading.spec.model.ID
	}
	for _, q := range loads {
		m := q.spec.model
		t := policy.Ticket{ID: q.ticket.ID, Model: policy.Model{ID: m.ID, Type: m.Type, Devices: m.Devices, Pinned: q.spec.pinned, Memory: q.spec.memory, GPUs: q.spec.gpus}}
		if w := h.waits[q.ticket.ID]; w != nil {
			t.Since, t.Overtaken = w.since, w.overtaken
		}
		v.Queue = append(v.Queue, t)
	}
	return v
}

// seatsLocked returns the NPU seats from the runner's flag, else from the host's entry in the catalog.
func (h *Host) seatsLocked() map[policy.Type]int {
	if h.cfg.NPUSeats != nil {
		return h.cfg.NPUSeats
	}
	if known, ok := h.catalog.Host(h.cfg.Name); ok {
		return known.NPUSeats
	}
	return nil
}

// changeStatusLocked closes models for a load that waits for them, or reopens them. It ignores models with another
// status than from: those being stopped or claimed by the load in progress.
func (h *Host) changeStatusLocked(ids []string, from, next status) {
	for _, id := range ids {
		if r := h.residents[id]; r != nil && r.status == from {
			r.setStatus(next)
		}
	}
}

// isInProgress reports whether this host is carrying out a ticket, or has reported its outcome and no snapshot shows
// that yet.
func (h *Host) isInProgress(ticket string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.inProgress[ticket]
	return ok
}

// recheckReported makes the host check a queued ticket again whose outcome it has reported, because a failover may have
// lost the outcome.
func (h *Host) recheckReported(ticket string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.inProgress[ticket].IsZero() {
		h.recheckMirror.Store(true)
	}
}

func (h *Host) markInProgress(ticket string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.markInProgressLocked(ticket)
}

func (h *Host) markInProgressLocked(ticket string) {
	h.inProgress[ticket] = time.Time{}
	if n, err := strconv.ParseUint(ticket, 10, 64); err == nil {
		h.highest = max(h.highest, n) // tickets are numbered like generations
	}
}

// forgetTicket undoes markInProgress, so that the next pass handles the ticket again.
func (h *Host) forgetTicket(ticket string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inProgress, ticket)
}

// markReported records that Redis has accepted a ticket's outcome, or no longer has the ticket.
func (h *Host) markReported(ticket string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inProgress[ticket] = time.Now()
}
