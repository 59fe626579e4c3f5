package scheduling

import (
	"container/list"
	"errors"
	"time"

	"reveille/gateway/api"
)

// ErrLeft is the outcome of a waiter that called Leave before it had an outcome.
var ErrLeft = errors.New("the waiter left")

// WaitRequest is one request for a model that has no endpoint.
type WaitRequest struct {
	// Model is the canonical id; it must be in the catalog.
	Model string
	// Refused names the hosts that refused this request, even if the mirror and the store still show the model loaded
	// there.
	Refused []string
	// Limit shortens the wait. 0, or more than the gate's hold, means the hold.
	Limit time.Duration
	// DontWait starts the load without waiting for it: the waiter ends immediately with model_loading.
	DontWait bool
	// Priority of the load in its host's queue, as in state.Want.
	Priority string
	// Account is the account that the request is charged to; nil means no account and no limits.
	Account Account
}

// Account limits what one API key may wait for and load. Its methods are called with the gate's lock held and must not
// block.
type Account interface {
	// BeginWait counts a request as waiting until EndWait, or returns why no more may wait.
	BeginWait() error
	EndWait()
	// CountLoad counts a load that the account starts, or returns why it may not.
	CountLoad() error
	// ReturnLoad gives a counted load back that did not start.
	ReturnLoad()
}

// LoadInfo describes how a waiter got its endpoint.
type LoadInfo struct {
	Ticket  string        // "" if the model turned out to be loaded
	Waiters int           // how many got this endpoint at the same time, this one included
	Cold    bool          // the runner loaded the model for this ticket
	LoadMS  int64         // how long that took
	Evicted []string      // models evicted for it
	Waited  time.Duration // since Enter
	Stages  []StageChange // of the model's load, in order; some may lie before Enter
}

// A Waiter is one request held until its model is ready. It has exactly one outcome: an endpoint, an error, or ErrLeft.
// Methods are safe for concurrent use.
type Waiter struct {
	gate    *Gate
	group   *group
	entered time.Time
	done    chan struct{} // closed by finishLocked, which writes the outcome; Enter does both with DontWait
	ahead   int
	account Account // nil: no limits

	// Guarded by gate.mu.
	element *list.Element // in group.waiters, nil when finished
	timer   *time.Timer

	// Written before done is closed, read only after.
	endpoint Endpoint
	info     LoadInfo
	err      error
}

// Done returns a channel that is closed when the outcome is there.
func (w *Waiter) Done() <-chan struct{} { return w.done }

// Result returns the outcome. Before Done is closed, it waits.
func (w *Waiter) Result() (Endpoint, LoadInfo, error) {
	<-w.done
	return w.endpoint, w.info, w.err
}

// Ahead returns how many requests for the model were waiting at this gateway when this one arrived.
func (w *Waiter) Ahead() int { return w.ahead }

// Leave gives up the wait. keep lets the load continue even if no other request waits for it. The first outcome stays,
// so Leave after Done does nothing.
func (w *Waiter) Leave(keep bool) {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	if w.element == nil {
		return
	}
	w.group.keep = w.group.keep || keep
	w.gate.finishLocked(w, Endpoint{}, LoadInfo{}, ErrLeft)
}

// expire ends a wait that timed out; the load continues.
func (w *Waiter) expire() {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	if w.element == nil {
		return
	}
	w.group.keep = true
	w.gate.finishLocked(w, Endpoint{}, LoadInfo{}, w.gate.timeoutLocked(w.group))
}

// finishLocked sets w's outcome.
// REQUIRES: w has none.
func (g *Gate) finishLocked(w *Waiter, e Endpoint, info LoadInfo, err error) {
	w.timer.Stop()
	info.Waited = time.Since(w.entered)
	w.endpoint, w.info, w.err = e, info, err
	w.group.waiters.Remove(w.element)
	w.element = nil
	g.waiting--
	if w.account != nil {
		w.account.EndWait()
	}
	close(w.done)
	if w.group.waiters.Len() == 0 {
		w.group.notify()
	}
}

// timeoutLocked returns the error for a wait that timed out. It names what delayed the load.
func (g *Gate) timeoutLocked(gr *group) error {
	st := g.progressLocked(gr)
	switch {
	case gr.acquisition.ticket == "" && gr.acquisition.noHostErr != nil:
		return gr.acquisition.noHostErr
	case st.Stage == StageQueued && gr.acquisition.ticket != "" && g.waitsForBusy(gr.acquisition.host):
		return api.Newf(api.ModelBusy, "The model '%s' waits for requests to other models to end.", gr.model)
	}
	e := loading(gr.model)
	if st.Stage == StageWaking {
		e = api.Newf(api.ModelLoading, "The model '%s' waits for its host to wake; try again.", gr.model)
	}
	if st.ETA > 0 {
		return e.WithRetryAfter(st.ETA)
	}
	return e
}

func loading(model string) *api.Error {
	return api.Newf(api.ModelLoading, "The model '%s' is being loaded; try again.", model)
}
