package host_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/runner/engine"
	"reveille/runner/host"
	"reveille/runner/plan"
)

// engines starts fake engines with a given behavior and records violations.
type engines struct {
	mu          sync.Mutex
	fails       map[string][]error       // of a model's next starts
	broken      map[string]error         // what Check finds
	gates       map[string]chan struct{} // the model's load waits for this
	slow        func() time.Duration     // how long a load takes
	plans       map[string]plan.Plan     // of models without a size in the catalog
	took        map[string]int64         // by model: what its engine is measured to take
	started     []string
	live        map[string]*fake
	loading     int
	faults      []string
	pids        int
	allowCopies bool // a model may have a second engine besides a retired one
}

func newEngines() *engines {
	return &engines{plans: map[string]plan.Plan{}, took: map[string]int64{}, fails: map[string][]error{}, broken: map[string]error{}, gates: map[string]chan struct{}{}, live: map[string]*fake{}}
}

func (e *engines) fault(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, fmt.Sprintf(format, args...))
}

func (e *engines) Plan(m *catalog.Model, _ *recipe.Recipe, _ recipe.Options, _ plan.Share) (plan.Plan, error) {
	if m.Memory > 0 {
		return plan.Plan{Need: int64(m.Memory)}, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.plans[m.ID], nil
}

func (e *engines) Check(_ context.Context, m *catalog.Model, _ *recipe.Recipe, _ recipe.Options) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.broken[m.ID]
}

func (e *engines) Start(ctx context.Context, m *catalog.Model, _ *recipe.Recipe, o recipe.Options, _ plan.Plan, g engine.GPUs) (host.Engine, error) {
	e.mu.Lock()
	e.started = append(e.started, m.ID)
	if e.loading++; e.loading > 1 {
		e.faults = append(e.faults, "two loads at the same time")
	}
	if e.live[m.ID] != nil && !e.allowCopies {
		e.faults = append(e.faults, "second copy of "+m.ID)
	}
	gate, slow := e.gates[m.ID], time.Duration(0)
	if e.slow != nil {
		slow = e.slow()
	}
	var err error
	if list := e.fails[m.ID]; len(list) > 0 {
		err, e.fails[m.ID] = list[0], list[1:]
	}
	e.pids++
	f := &fake{e: e, model: m.ID, options: o, gpus: g, pid: e.pids, done: make(chan struct{}), client: relay.New(relay.Config{Addr: "127.0.0.1:1"})}
	e.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loading--
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	e.live[m.ID] = f
	return f, nil
}

// of returns the live engine of a model, or nil.
func (e *engines) of(model string) *fake {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[model]
}

func (e *engines) starts(model string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.started {
		if m == model {
			n++
		}
	}
	return n
}

type fake struct {
	e       *engines
	model   string
	options recipe.Options
	gpus    engine.GPUs
	pid     int
	done    chan struct{}
	once    sync.Once
	client  *relay.Client
	open    atomic.Int64 // passes in use
	mayCut  atomic.Bool  // being stopped with an open pass is allowed
	stuck   atomic.Bool
}

var errStuck = errors.New("does not end")

func (f *fake) PID() int              { return f.pid }
func (f *fake) BaseURL() string       { return "http://127.0.0.1:1" }
func (f *fake) APIKey() string        { return "" }
func (f *fake) Command() string       { return "fake " + f.model }
func (f *fake) Done() <-chan struct{} { return f.done }
func (f *fake) Err() error            { return nil }

func (f *fake) Measured() int64 {
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	return f.e.took[f.model]
}

func (f *fake) Held() int64                    { return f.Measured() }
func (f *fake) Client() *relay.Client          { return f.client }
func (f *fake) Kill(ctx context.Context) error { return f.Stop(ctx) }
func (f *fake) Features() host.Features        { return host.Features{} }

func (f *fake) Stop(context.Context) error {
	if f.stuck.Load() {
		return errStuck
	}
	if n := f.open.Load(); n > 0 && !f.mayCut.Load() {
		f.e.fault("%s was stopped with %d open requests", f.model, n)
	}
	f.die()
	return nil
}

// die ends the engine as if it crashed or was stopped.
func (f *fake) die() {
	f.once.Do(func() {
		f.e.mu.Lock()
		if f.e.live[f.model] == f {
			delete(f.e.live, f.model)
		}
		f.e.mu.Unlock()
		close(f.done)
	})
}
