package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"reveille/infra/rpc"
	"reveille/infra/state"
)

// ErrInterrupted is the cause of requests that are cut because the host's machine is reclaimed.
var ErrInterrupted = errors.New("the host's machine is being reclaimed")

// errInterruptedLoad is the outcome of a load on such a host: another host may succeed.
var errInterruptedLoad = &Error{Code: rpc.CodeHostInterrupted, Message: "The model's host is shutting down. Retry the request.", Final: true, Cause: ErrInterrupted}

// interruption is the announced end of the host's machine.
type interruption struct {
	once    sync.Once
	started chan struct{} // closed after until is set
	until   time.Time
}

// Interrupt announces that the host's machine is being reclaimed. The host drains: it takes no request and starts no
// load. Loads that are queued, in progress, or arrive later fail with host_interrupted, so that other hosts get them.
// Open requests can run until the given time. Then they are cut with ErrInterrupted, and Run returns. Until then the
// host stays draining even if no request is open, because waking it would be useless. Interrupt does not wait. Only the
// first call counts.
func (h *Host) Interrupt(until time.Time) {
	h.interruption.once.Do(func() {
		h.interruption.until = until
		close(h.interruption.started)
	})
}

// drainInterrupted does what an interrupted host does besides draining. It starts to refuse loads and sets grace, the
// time left to open requests. The end of ctx shortens grace to Config.DrainTimeout, as for a runner that is stopped.
// The caller calls wait when the engines are gone. wait blocks for the rest of grace, or until ctx ends.
func (h *Host) drainInterrupted(ctx, untilEnd context.Context) (wait func()) {
	base, cut := context.WithCancelCause(untilEnd)
	grace, end := context.WithDeadlineCause(base, h.interruption.until, ErrInterrupted)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(h.cfg.DrainTimeout, func() { cut(ErrCut) }) })
	h.mu.Lock()
	h.grace = grace
	h.mu.Unlock()
	var refusing sync.WaitGroup
	refusing.Go(func() { h.refuseLoads(grace, untilEnd) })
	return func() {
		select {
		case <-grace.Done():
		case <-ctx.Done():
		}
		stop()
		cut(nil)
		end()
		refusing.Wait()
	}
}

// refuseLoads fails the loads that are queued here and those that arrive, until ctx ends. All models are unloaded
// anyway, so an unload ticket succeeds when its model is gone. A forced one cuts the open requests.
func (h *Host) refuseLoads(ctx, untilEnd context.Context) {
	tick := time.NewTicker(time.Second) // in case events were lost
	defer tick.Stop()
	for ctx.Err() == nil {
		changed := h.mirror.Changed()
		if me := h.mirror.Snapshot().Hosts[h.cfg.Name]; me != nil {
			for _, t := range me.Queue {
				copies := h.copies(t.Model)
				switch {
				case t.State != state.TicketQueued || h.isInProgress(t.ID):
				case t.Kind == "load":
					h.reportNow(untilEnd, t, failure(errInterruptedLoad))
				case len(copies) == 0:
					h.reportNow(untilEnd, t, state.Outcome{Fields: map[string]string{}})
				case t.Force:
					for _, r := range copies {
						h.cutAll(r, ErrCut)
					}
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-tick.C:
		}
	}
}

// drainContext returns the context within which the open requests of a model being unloaded can finish. It ends after
// limit or, on an interrupted host, with the time that the machine has left. A limit of 0 cuts them immediately. Its
// cause says why they are cut.
func (h *Host) drainContext(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	h.mu.Lock()
	grace := h.grace
	h.mu.Unlock()
	if grace != nil && limit > 0 {
		return context.WithCancel(grace)
	}
	return context.WithTimeoutCause(ctx, limit, ErrCut)
}
