package host

import (
	"context"
	"errors"
	"sync"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// Run registers the host and serves its queue until ctx ends, then drains: no new request is admitted, open ones are
// let end within Config.DrainTimeout, engines are stopped, the host is written asleep. Until then it beats. It returns
// ErrReplaced when another runner took the host's name: then requests are cut and Redis is left to that runner. Run is
// called once.
func (h *Host) Run(ctx context.Context) error {
	live, end := context.WithCancelCause(ctx)
	defer end(nil)
	back, endBack := context.WithCancel(context.WithoutCancel(ctx)) // what goes on until the last engine is gone
	var wg sync.WaitGroup
	wg.Go(func() { h.mirror.Run(back) })
	wg.Go(func() {
		if err := h.beatLoop(back); err != nil {
			end(err)
		}
	})
	h.loop(live, back)
	replaced := errors.Is(context.Cause(live), ErrReplaced)
	h.shutdown(back, replaced)
	endBack()
	wg.Wait()
	if replaced {
		return ErrReplaced
	}
	return nil
}

// shutdown ends everything in order. A replaced host stops at once and leaves Redis to its successor.
func (h *Host) shutdown(ctx context.Context, replaced bool) {
	h.mu.Lock()
	h.draining = true
	all := h.residentsLocked()
	for _, r := range all {
		r.debts = debts{} // who is owed a place is refused now
		h.settleLocked(r)
	}
	h.mu.Unlock()
	h.endLife()
	h.tell(ctx, replaced, policy.Draining)
	for _, r := range all {
		h.startUnload(ctx, nil, r, replaced)
	}
	h.work.Wait() // also for the load under way, which ends in a failure, or just made it
	h.mu.Lock()
	rest := h.residentsLocked()
	h.mu.Unlock()
	for _, r := range rest {
		if err := h.stop(ctx, r, "runner stops", false); err != nil {
			h.log.Error("engine does not stop", "model", r.id, "error", err)
		}
	}
	h.endOver()
	h.watches.Wait()
	h.tell(ctx, replaced, policy.Asleep)
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

// tell writes the host's state. After the last word, and for a host that is replaced, nothing more is written.
func (h *Host) tell(ctx context.Context, replaced bool, st policy.HostState) {
	h.pub.Lock()
	defer h.pub.Unlock()
	h.silent = replaced || st == policy.Asleep
	if replaced || h.generation == 0 {
		return
	}
	err := h.store.SetHostState(ctx, h.cfg.Name, h.generation, string(st))
	if err != nil && !errors.Is(err, state.ErrUnknownHost) { // one that Redis holds asleep does not drain
		h.log.Warn("the host's state could not be written", "state", st, "error", err)
	}
}
