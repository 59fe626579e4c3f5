package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// ErrReplaced: another runner has registered this host's name.
var ErrReplaced = errors.New("another runner has registered as this host")

// beatLoop keeps the host registered and alive in Redis. It returns nil when ctx ends, and an error when another runner
// takes its name. An idle host whose last beat succeeded skips every second one: beats are the cost of a large idle
// pool. Between beats the loop confirms a sweep's request to put this host to sleep, and registers again when a
// sleeping host is wanted awake.
func (h *Host) beatLoop(ctx context.Context) error {
	tick := time.NewTicker(h.cfg.Beat)
	defer tick.Stop()
	maySkip := false
	for due := true; ; {
		changed := h.mirror.Changed()
		if due || h.isWaking() {
			err := h.beat(ctx)
			if errors.Is(err, ErrReplaced) {
				h.log.Error("another runner has registered this host's name; stopping")
				return err
			}
			maySkip = err == nil
		}
		h.confirmSleep(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			due = !maySkip || !h.isIdle()
			maySkip = false
		case <-changed:
			due = false
		}
	}
}

// isIdle reports whether a beat has nothing new to report or to check: no request was open since the last one, no load
// is in progress, and Redis has shown all of this host's writes.
func (h *Host) isIdle() bool {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.mustRegister || h.fenced || len(h.unsentOutcomes) > 0 || h.recheckMirror.Load() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.active || h.loading != nil || len(h.inProgress) > 0 {
		return false
	}
	for _, r := range h.residents {
		if len(r.open) > 0 {
			return false
		}
	}
	return true
}

// beat registers if Redis lacks some of the host's state, and reports the open requests. Only the error ErrReplaced is
// final.
func (h *Host) beat(ctx context.Context) error {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.writesEnded {
		return nil
	}
	for range 2 { // again if Redis turns out to lack the host
		if h.fenced {
			if err := h.checkFence(ctx); err != nil {
				return err
			}
		}
		h.compareAddrLocked()
		if h.mustRegister {
			if err := h.registerLocked(ctx); err != nil {
				return err
			}
		}
		err := h.beatLocked(ctx)
		switch {
		case errors.Is(err, state.ErrUnknownHost), errors.Is(err, state.ErrFenced):
			h.log.Warn("Redis refused this host's heartbeat, registering again", "reason", err)
			h.noteWriteErrorLocked(err)
		default:
			return err
		}
	}
	return nil
}

// compareAddrLocked makes the host register again when its record has another address, because gateways send requests
// there. redisMu is held.
func (h *Host) compareAddrLocked() {
	me := h.mirror.Snapshot().Hosts[h.cfg.Name]
	if h.mustRegister || me == nil || isAsleepOrWaking(me) || me.Generation != h.generation || me.Fields["addr"] == h.cfg.Addr {
		return
	}
	h.log.Warn("this host's record in Redis has another address, registering again")
	h.mustRegister = true
}

// beatLocked sends a beat, and has the mirror read what Redis has changed. redisMu is held.
func (h *Host) beatLocked(ctx context.Context) error {
	revision, err := h.reportUsesLocked(ctx)
	if err != nil {
		return err
	}
	h.mirror.ExpectRevision(revision)
	if h.recheckMirror.Swap(false) {
		h.mirror.ScheduleRead()
	}
	return nil
}

// reportUsesLocked reports the models' uses to Redis, reads the last uses that Redis knows, and returns the host's
// revision. redisMu is held.
func (h *Host) reportUsesLocked(ctx context.Context) (revision uint64, err error) {
	h.mu.Lock()
	active := h.active
	h.active = false
	now := time.Now()
	uses, reported := make(map[string]state.Use, len(h.residents)), make(map[*resident]time.Time, len(h.residents))
	for key, r := range h.residents {
		r.needLocked()
		use := state.Use{Open: len(r.open), Age: -time.Millisecond, NeededAge: -time.Millisecond}
		if !r.needed.IsZero() {
			use.NeededAge = max(now.Sub(r.needed), 0)
		}
		if r.used.After(r.reported) {
			use.Age = max(now.Sub(r.used), 0)
		}
		uses[key], reported[r] = use, r.used
		active = active || len(r.open) > 0
	}
	h.mu.Unlock()
	revision, used, err := h.store.Beat(ctx, h.cfg.Name, h.generation, active, uses)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.active = h.active || active
		return 0, err
	}
	for r, at := range reported {
		if inRedis, ok := used[r.key]; ok {
			r.reported, r.inRedis = at, inRedis
		}
	}
	return revision, nil
}

// readUses reads when models were last used, for the loads that are decided next, and reports whether Redis responded.
func (h *Host) readUses(ctx context.Context) bool {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	if h.mustRegister {
		return false
	}
	_, err := h.reportUsesLocked(ctx)
	if err != nil && !errors.Is(err, state.ErrUnavailable) {
		h.noteWriteErrorLocked(err)
	}
	return err == nil
}

// checkFence finds out why Redis refused this host's generation: either a later runner took its name (ErrReplaced), or
// a failover restored an older state, which a new registration repairs.
func (h *Host) checkFence(ctx context.Context) error {
	s, err := h.store.SnapshotOf(ctx, []string{h.cfg.Name}, nil)
	if err != nil {
		return err
	}
	me := s.Hosts[h.cfg.Name]
	if me != nil && me.Generation > h.generation && me.Fields["boot"] != h.cfg.Boot {
		return ErrReplaced
	}
	if me != nil && me.Generation >= h.ownedLocked() && h.cfg.Machine != "" && me.Machine() != "" && me.Machine() != h.cfg.Machine {
		return fmt.Errorf("%w: machine %s has claimed this slot of the group", ErrReplaced, me.Machine())
	}
	h.fenced = false
	return nil
}

// ownedLocked returns the last generation of this life, 0 before it has registered. redisMu is held.
func (h *Host) ownedLocked() uint64 {
	if h.registered.IsZero() {
		return 0
	}
	return h.generation
}

// registerLocked writes everything the host holds, as a new generation, and the outcomes not yet sent. A host that is
// shutting down also writes its state again. redisMu is held.
func (h *Host) registerLocked(ctx context.Context) error {
	h.detectAgainLocked(ctx)
	info := state.HostInfo{
		Name: h.cfg.Name, Machine: h.cfg.Machine, Boot: h.cfg.Boot, Addr: h.cfg.Addr, TLS: h.cfg.TLS, Labels: strings.Join(h.cfg.Labels, ","), Version: h.cfg.Version, Options: h.cfg.Options.Canonical(),
	}
	if box, err := json.Marshal(h.cfg.Sandbox); err == nil && h.cfg.Sandbox.Mode != "" {
		info.Sandbox = string(box)
	}
	if h.cfg.NPUSeats != nil {
		seats, _ := json.Marshal(h.cfg.NPUSeats) // a map of numbers always marshals
		info.NPUSeats = string(seats)
	}
	now := time.Now()
	h.mu.Lock()
	draining := h.draining
	info.Generation = max(h.generation, h.highest)
	info.Owned = h.ownedLocked()
	hw := h.hardware
	info.Devices, info.Budget, info.Total = hw.Devices.String(), placement.FormatMemory(hw.Budget, hw.Cards), placement.FormatMemory(hw.Totals, nil)
	if hw.Cards != nil {
		info.GPUAPI = hw.Found.API()
	}
	if found, err := json.Marshal(hw.Found); err == nil && len(hw.Found.Devices) > 0 {
		info.Found = string(found)
	}
	info.Limits, info.Learned = h.settings.limits.String(), h.learnedLocked()
	for _, r := range h.residents {
		r.dirty = false
		info.Models = append(info.Models, h.recordLocked(r, true))
	}
	if h.loading != nil && h.loading.recorded {
		info.Loading = h.loading.ticket.ID
	}
	h.mu.Unlock()
	generation, _, err := h.store.Register(ctx, info)
	if err != nil {
		h.noteWriteErrorLocked(err)
		switch {
		case errors.Is(err, state.ErrStopping):
			h.log.Info("machine is being turned off, not registering the host")
		case !errors.Is(err, state.ErrUnavailable): // the store logs that one
			h.log.Error("host could not be registered", "error", err)
		}
		h.mu.Lock()
		for _, r := range h.residents {
			r.dirty = true
		}
		h.mu.Unlock()
		return err
	}
	h.generation, h.mustRegister, h.registered, h.written = generation, false, now, now
	if h.cfg.OnRegister != nil {
		h.cfg.OnRegister(generation)
	}
	h.log.Info("host registered", "generation", generation, "models", len(info.Models))
	if draining {
		h.noteWriteErrorLocked(h.store.SetHostState(ctx, h.cfg.Name, h.generation, string(policy.Draining)))
	}
	for len(h.unsentOutcomes) > 0 {
		if err := h.publishOutcomeLocked(ctx, h.unsentOutcomes[0]); err != nil {
			h.noteWriteErrorLocked(err)
			return err
		}
		h.unsentOutcomes = h.unsentOutcomes[1:]
	}
	h.notify()
	return nil
}
