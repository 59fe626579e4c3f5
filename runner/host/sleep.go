package host

import (
	"context"
	"errors"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// confirmSleep responds to a sweep that wants this host asleep. If the host holds no model, it is asleep afterwards:
// its runner still sends heartbeats but starts nothing, until its machine is turned off or a beat finds that the host
// is wanted awake. If work arrived, or the machine is in use, the host stays awake.
func (h *Host) confirmSleep(ctx context.Context) {
	me := h.mirror.Snapshot().Hosts[h.cfg.Name]
	if me == nil || me.State != policy.Draining || me.Fields["sleep_token"] == "" {
		return
	}
	if !h.holdsNothing() {
		return // Redis does not know that yet; the sweep will undo the drain
	}
	switch err := h.store.ConfirmSleep(ctx, h.cfg.Name, h.writableGeneration(), me.Fields["sleep_token"], h.isInUse(ctx)); {
	case err == nil:
		h.log.Info("host goes to sleep")
	case errors.Is(err, state.ErrWanted):
		h.log.Info("the host stays awake: work arrived, or its machine is in use")
	case errors.Is(err, state.ErrUnavailable), errors.Is(err, state.ErrGone):
		return
	default:
		h.noteWriteError(err)
	}
	h.notify()
}

// FailSleep reports that this machine could not be turned off for the sleep of this token: the host serves again.
func (h *Host) FailSleep(ctx context.Context, token string) error {
	return h.store.FailSleep(ctx, h.cfg.Name, h.writableGeneration(), token)
}

// holdsNothing reports whether the host has no model and may start one.
func (h *Host) holdsNothing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.draining && h.loading == nil && len(h.residents) == 0
}

// useLoop checks whether this machine is in use for as long as the host holds no model, until ctx ends.
func (h *Host) useLoop(ctx context.Context) {
	if h.cfg.InUse == nil {
		return
	}
	tick := time.NewTicker(h.cfg.UseInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if h.holdsNothing() {
				h.isInUse(ctx)
			}
		case <-ctx.Done():
			return
		}
	}
}

// isInUse reports whether this machine must stay on. Its use counts as activity of the host, so that the host sleeps
// only when both have been idle for the sweep's HostIdle.
func (h *Host) isInUse(ctx context.Context) bool {
	if h.cfg.InUse == nil {
		return false
	}
	reason := h.cfg.InUse(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active = h.active || reason != ""
	if reason != h.useReason && ctx.Err() == nil {
		h.useReason = reason
		if reason != "" {
			h.log.Info("this machine is in use and stays on", "reason", reason)
		} else {
			h.log.Info("this machine is no longer in use")
		}
	}
	return reason != ""
}

// isWaking reports whether the mirror shows that the host is about to be woken. The next beat then registers again.
func (h *Host) isWaking() bool {
	me := h.mirror.Snapshot().Hosts[h.cfg.Name]
	return me != nil && me.State == policy.Waking
}

// isAsleepOrWaking reports whether Redis has the host as asleep or about to be woken. Then nothing may start until this
// runner has registered again.
func isAsleepOrWaking(me *state.HostRecord) bool {
	return me.State == policy.Asleep || me.State == policy.Waking
}

// detectAgainLocked detects the devices again when a sleeping host wakes, because its machine may have changed. redisMu
// is held.
func (h *Host) detectAgainLocked(ctx context.Context) {
	me := h.mirror.Snapshot().Hosts[h.cfg.Name]
	if h.cfg.Detect == nil || h.registered.IsZero() || me == nil || !isAsleepOrWaking(me) {
		return
	}
	found := h.cfg.Detect(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hardware, h.available = found, nil
}
