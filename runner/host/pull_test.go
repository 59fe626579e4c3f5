package host_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/state"
	"reveille/runner/host"
)

// weights are fake weights: those of the models in away must be pulled first.
type weights struct {
	mu    sync.Mutex
	away  map[string]bool
	fails map[string][]error       // of the next pulls
	gates map[string]chan struct{} // a pull waits for its model's
	pulls map[string]int
}

func newWeights(away ...string) *weights {
	w := &weights{away: map[string]bool{}, fails: map[string][]error{}, gates: map[string]chan struct{}{}, pulls: map[string]int{}}
	for _, m := range away {
		w.away[m] = true
	}
	return w
}

func (w *weights) HasFiles(m *catalog.Model) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.away[m.ID]
}

func (w *weights) Progress(m *catalog.Model) (done, total int64) { return 3 << 30, 4 << 30 }

func (w *weights) Pull(ctx context.Context, m *catalog.Model) error {
	w.mu.Lock()
	w.pulls[m.ID]++
	gate := w.gates[m.ID]
	w.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if list := w.fails[m.ID]; len(list) > 0 {
		w.fails[m.ID] = list[1:]
		return list[0]
	}
	delete(w.away, m.ID)
	return nil
}

func (w *weights) count(model string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pulls[model]
}

func with(w *weights) func(*host.Config) { return func(c *host.Config) { c.Weights = w } }

// pulling waits until a ticket shows its pull's progress.
func (b *bench) pulling(ticket string) {
	b.Helper()
	b.until("pull of "+ticket, func() bool {
		r := b.peek(ticket).Record
		return r.State == "queued" && r.Pulling && r.Pulled == state.Pulled{Done: 3 << 30, Total: 4 << 30}
	})
}

// While weights are pulled nothing makes room for them: the later victim still serves, and other loads pass.
func TestPullEvictsNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		w := newWeights("b")
		gate := make(chan struct{})
		w.gates["b"] = gate
		b := startOn(t, addr, with(w))
		b.ready(b.load("a"))
		ticket := b.load("b")
		b.pulling(ticket)
		b.busy("a")()
		b.ready(b.load("e"))
		b.ready(b.load("c")) // even one of the same type
		b.busy("c")()
		close(gate)
		if r := b.ready(ticket); r.Evicted != "c" || r.Pulling {
			t.Errorf("%+v", r)
		}
		b.holds("b", "e")
		if w.count("b") != 1 || b.engines.starts("b") != 1 {
			t.Errorf("%d pulls, %d starts", w.count("b"), b.engines.starts("b"))
		}
	})
}

// lateWeights are weights whose next check, once armed, is held up by late.
type lateWeights struct {
	*weights
	armed atomic.Bool
	late  func()
}

func (w *lateWeights) HasFiles(m *catalog.Model) bool {
	there := w.weights.HasFiles(m)
	if m.ID == "b" && w.armed.CompareAndSwap(true, false) {
		w.late()
	}
	return there
}

// A ticket whose pull fails during a pass over the queue does not start another one.
func TestFailedPullIsNotRestartedInTheSamePass(t *testing.T) {
	w := &lateWeights{weights: newWeights("b")}
	gate := make(chan struct{})
	w.gates["b"] = gate
	w.fails["b"] = []error{&host.Error{Code: "disk_full", Message: "no room", Final: true}}
	b := start(t, func(c *host.Config) { c.Weights = w })
	ticket := b.load("b")
	b.pulling(ticket)
	w.late = func() {
		close(gate)
		b.failed(ticket, "disk_full")
	}
	w.armed.Store(true)
	b.ready(b.load("e")) // makes the host look at the queue
	if w.armed.Load() || w.count("b") != 1 {
		t.Errorf("%d pulls, want 1", w.count("b"))
	}
}

// A failed pull fails all who wait for it and evicts nothing. The next request pulls again.
func TestFailedPullFailsAllItsTickets(t *testing.T) {
	w := newWeights("b")
	gate := make(chan struct{})
	w.gates["b"] = gate
	w.fails["b"] = []error{&host.Error{Code: "disk_full", Message: "weights hf://o/r/b: no room", Final: true}}
	b := start(t, with(w))
	b.ready(b.load("a"))
	first := b.load("b")
	second := b.ask(state.Want{Model: "b", OwnTicket: true, Unattended: true, Fields: map[string]string{"options": "{}"}})
	b.pulling(first)
	b.pulling(second)
	close(gate)
	for _, ticket := range []string{first, second} {
		if r := b.failed(ticket, "disk_full"); r.Message != "weights hf://o/r/b: no room" {
			t.Error(r.Message)
		}
	}
	b.busy("a")()
	if s := b.host.Stats(); s.Clears != 0 || s.LoadFailures != 1 || b.engines.starts("b") != 0 || w.count("b") != 1 {
		t.Errorf("%+v, %d starts, %d pulls", s, b.engines.starts("b"), w.count("b"))
	}
	b.ready(b.load("b"))
	if w.count("b") != 2 {
		t.Errorf("%d pulls", w.count("b"))
	}
}

// Nobody waits any more: nothing is loaded, but the pull continues for the next request.
func TestPullContinuesWithoutWaiters(t *testing.T) {
	w := newWeights("b")
	gate := make(chan struct{})
	w.gates["b"] = gate
	b := start(t, with(w))
	ticket := b.load("b")
	b.pulling(ticket)
	b.must(b.store.ReleaseTicket(t.Context(), "g", ticket, false))
	b.until("dropped", func() bool { return b.peek(ticket).Record.State == "dropped" })
	close(gate)
	b.until("pulled", func() bool { return w.HasFiles(&catalog.Model{ID: "b"}) })
	b.ready(b.load("b"))
	if w.count("b") != 1 || b.engines.starts("b") != 1 {
		t.Errorf("%d pulls, %d starts", w.count("b"), b.engines.starts("b"))
	}
}

// A runner that stops ends its pulls; its successor starts them again.
func TestNextRunnerRestartsAPull(t *testing.T) {
	w := newWeights("b")
	w.gates["b"] = make(chan struct{})
	b := start(t, with(w))
	ticket := b.load("b")
	b.pulling(ticket)
	b.must(b.end())
	if r := b.peek(ticket).Record; r.State != "queued" {
		t.Errorf("%+v", r)
	}
	w.mu.Lock()
	clear(w.gates)
	w.mu.Unlock()
	b.cfg.Boot = "boot-2"
	b.run()
	if r := b.ready(ticket); r.Pulling {
		t.Errorf("%+v", r)
	}
	if w.count("b") != 2 {
		t.Errorf("%d pulls", w.count("b"))
	}
}
