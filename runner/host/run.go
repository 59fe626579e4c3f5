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
// host whose machine is taken away drains as Interrupt says. Run returns ErrReplaced when another runner takes the
// host's name: it then cuts requests and leaves Redis to that runner. Run is called once.
func (h *Host) Run(ctx context.Context) error {
	live, end := context.WithCancelCause(ctx)
	defer end(nil)
	background, endBack := context.WithCancel(context.WithoutCancel(ctx)) // for what continues until the last engine is gone
	var wg sync.WaitGroup
	wg.Go(func() { h.mirror.Run(background) })
	wg.Go(func() {
		if err := h.beatLoop(background); err != nil {
			end(err)
		}
	})
	wg.Go(func() { h.measureLoop(background) })
	wg.Go(func() {
		select {
		case <-h.notice.given:
			end(ErrInterrupted)
		case <-live.Done():
		}
	})
	h.loop(live, background)
	cause := context.Cause(live)
	replaced := errors.Is(cause, ErrReplaced)
	waitOut := func() {}
	if errors.Is(cause, ErrInterrupted) {
		h.log.Warn("the host's machine is taken away", "cut", h.notice.until)
		waitOut = h.drainInterrupted(ctx, background)
	}
	h.drain(background, cause)
	waitOut()
	h.writeState(background, replaced, policy.Asleep)
	endBack()
	wg.Wait()
	if replaced {
		return ErrReplaced
	}
	return nil
}

// drain ends everything in order, for the given cause. A replaced host stops at once and leaves Redis to its successor.
func (h *Host) drain(ctx context.Context, cause error) {
	replaced := errors.Is(cause, ErrReplaced)
	h.mu.Lock()
	h.draining = true
	all := h.residentsLocked()
	for _, r := range all {
		clear(r.reservations) // requests that it was reserved for are refused now
		h.notifyIdleLocked(r)
	}
	h.mu.Unlock()
	h.endLife(cause)
	h.writeState(ctx, replaced, policy.Draining)
	h.startUnload(ctx, nil, h.drainTimeout(replaced), all...)
	h.work.Wait() // also for the load in progress, which fails, or has just succeeded
	h.mu.Lock()
	rest := h.residentsLocked()
	h.mu.Unlock()
	for _, r := range rest {
		if err := h.stop(ctx, r, "runner stops", false); err != nil {
			h.log.Error("engine does not stop", "model", r.id, "error", err)
		}
	}
	h.giveUp()
	h.watches.Wait()
}

// residentsLocked lists the models that have an engine.
func (h *Host) residentsLocked() []*resident {
	var out []*resident
	for _, r := range h.residents {
		if r.engine != nil {
			out = append(out, r)
		}
	}
	return out
}

// writeState writes the host's state. After the final state, or if the host is replaced, nothing more is written.
func (h *Host) writeState(ctx context.Context, replaced bool, st policy.HostState) {
	h.redisMu.Lock()
	defer h.redisMu.Unlock()
	h.writesEnded = replaced || st == policy.Asleep
	if replaced || h.generation == 0 {
		return
	}
	err := h.store.SetHostState(ctx, h.cfg.Name, h.generation, string(st))
	if err != nil && !errors.Is(err, state.ErrUnknownHost) { // a host that Redis holds asleep does not drain
		h.log.Warn("the host's state could not be written", "state", st, "error", err)
	}
}
