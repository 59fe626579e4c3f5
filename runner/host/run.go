package host

import (
	"context"
	"errors"
	"sync"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// Run registers the host, sends its heartbeats and serves its queue until ctx ends, then drains. Draining admits no new
// request, lets open ones finish within Config.DrainTimeout, stops the engines and then records the host as asleep. A
// host whose machine is reclaimed drains as Interrupt describes. Run returns ErrReplaced when another runner takes the
// host's name: it then cuts requests and writes nothing more to Redis. Run must be called only once.
func (h *Host) Run(ctx context.Context) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// untilEnd is for everything that continues until the last engine is gone.
	untilEnd, end := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { h.mirror.Run(untilEnd) })
	wg.Go(func() {
		if err := h.beatLoop(untilEnd); err != nil {
			stop(err)
		}
	})
	wg.Go(func() { h.measureLoop(untilEnd) })
	wg.Go(func() { h.useLoop(untilEnd) })
	wg.Go(func() {
		select {
		case <-h.interruption.started:
			stop(ErrInterrupted)
		case <-running.Done():
		}
	})
	h.loop(running, untilEnd)
	cause := context.Cause(running)
	replaced := errors.Is(cause, ErrReplaced)
	waitForEnd := func() {}
	if errors.Is(cause, ErrInterrupted) {
		h.log.Warn("the host's machine is being reclaimed", "cut", h.interruption.until)
		waitForEnd = h.drainInterrupted(ctx, untilEnd)
	}
	h.drain(untilEnd, cause)
	waitForEnd()
	h.writeState(untilEnd, replaced, policy.Asleep)
	end()
	wg.Wait()
	if replaced {
		return ErrReplaced
	}
	return nil
}

// drain stops loads and engines in order, for the given cause. A replaced host stops immediately and writes nothing to
// Redis.
func (h *Host) drain(ctx context.Context, cause error) {
	replaced := errors.Is(cause, ErrReplaced)
	h.mu.Lock()
	h.draining = true
	all := h.withEngineLocked()
	for _, r := range all {
		clear(r.reservations) // requests with a reservation are refused from now on
		h.notifyIdleLocked(r)
	}
	h.mu.Unlock()
	h.endLife(cause)
	h.writeState(ctx, replaced, policy.Draining)
	h.startUnload(ctx, nil, h.drainTimeout(replaced), all...)
	h.work.Wait() // includes the load in progress, which fails or has just succeeded
	h.mu.Lock()
	remaining := h.withEngineLocked()
	h.mu.Unlock()
	for _, r := range remaining {
		if err := h.stop(ctx, r, "runner stops", false); err != nil {
			h.log.Error("engine does not stop", "model", r.id, "error", err)
		}
	}
	h.stopWatches()
	h.watches.Wait()
}

// withEngineLocked lists the models that have an engine.
func (h *Host) withEngineLocked() []*resident {
	var out []*resident
	for _, r := range h.residents {
		if r.engine != nil {
			out = append(out, r)
		}
	}
	return out
}

// writeState writes the host's state. Nothing is written after the final state or if the host is replaced.
func (h *Host) writeState(ctx context.Context, replaced bool, st policy.HostState) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	h.writesEnded = replaced || st == policy.Asleep
	if replaced || h.generation == 0 {
		return
	}
	err := h.store.SetHostState(ctx, h.cfg.Name, h.generation, string(st))
	if err != nil && !errors.Is(err, state.ErrUnknownHost) { // Redis already has the host asleep
		h.log.Warn("the host's state could not be written", "state", st, "error", err)
	}
}
