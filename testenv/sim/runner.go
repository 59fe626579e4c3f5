package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/recipe"
	"reveille/infra/state"
	"reveille/runner/devices"
	"reveille/runner/host"
	"reveille/testenv/check"
)

// runner is one host's runner over all its lives.
type runner struct {
	w       *world
	n       int
	name    string
	addr    string
	limits  policy.Limits
	budget  map[policy.Devices]int64
	cards   policy.GPUMemory
	found   devices.Found
	strange bool // the catalog does not name it
	machine machine

	mu         sync.Mutex
	life       *life
	boots      int
	generation uint64 // on its disk
	instance   string // of a group, on which it runs
}

// life is a runner from start to end.
type life struct {
	host    *host.Host
	engines *engines
	link    *link
	store   *state.Store
	cancel  context.CancelFunc
	ended   chan struct{}

	mu    sync.Mutex
	began bool // has registered
	stops bool
	conns map[*call]struct{}
}

// ready reports whether the runner registered and does not stop.
func (l *life) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began && !l.stops
}

func newRunner(w *world, n int, spec HostSpec, limits policy.Limits) *runner {
	name := w.scenario.hostName(n)
	r := &runner{w: w, n: n, name: name, addr: name + ":1", limits: limits, strange: spec.Strange}
	r.machine.power, r.machine.since = power.On, time.Now()
	if spec.Asleep {
		r.machine.power = power.Off
	}
	if spec.Budget > 0 {
		r.budget = map[policy.Devices]int64{policy.CPU: int64(spec.Budget) << 20}
	}
	if r.cards, r.found.Devices = cardsOf(spec); r.cards != nil {
		r.budget = map[policy.Devices]int64{}
		for _, n := range r.cards {
			r.budget[policy.GPU] += n
		}
	}
	return r
}

func (r *runner) hardware() host.Hardware {
	if r.cards != nil {
		return host.Hardware{Devices: policy.CPU | policy.GPU, Budget: r.budget, Cards: r.cards, Found: r.found}
	}
	return host.Hardware{Devices: policy.CPU | policy.NPU, Budget: r.budget}
}

// current is the life under way, nil when the runner is down.
func (r *runner) current() *life {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.life
}

// start begins a life unless one is under way.
func (r *runner) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life != nil || r.w.isEnding() {
		return
	}
	r.boots++
	l := &life{
		engines: &engines{w: r.w, host: r.name, live: map[int]*fake{}}, link: newLink(r.w.redis.Dial, true), ended: make(chan struct{}),
		conns: map[*call]struct{}{},
	}
	instance := r.instance
	store, err := r.w.store(l.link)
	if err != nil {
		panic(err) // the URL is a constant
	}
	l.store = store
	l.host = host.New(host.Config{
		Name: r.name, Machine: instance, Boot: fmt.Sprint("boot-", r.boots), Addr: r.addr, Limits: r.limits,
		Hardware:  r.hardware(),
		FairAfter: fairAfter, DrainTimeout: drainTimeout, Reserve: reserve, ClearTimeout: clearTimeout,
		Generation: r.generation, Store: store, Engines: l.engines, Recipes: func() (recipe.Set, error) { return shipped(), nil },
		OnRegister: func(g uint64) {
			r.w.record(check.Event{Kind: check.Registered, Host: r.name, Value: g})
			r.machine.set(func(m *machine) { m.barred = false })
			r.mu.Lock()
			r.generation = max(r.generation, g)
			r.mu.Unlock()
			l.mu.Lock()
			l.began = true
			l.mu.Unlock()
		},
	})
	l.engines.core = l.host
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	r.life = l
	r.w.record(check.Event{Kind: check.HostUp, Host: r.name})
	r.w.work.Go(func() {
		defer close(l.ended)
		err := l.host.Run(ctx)
		r.over(l)
		_ = store.Close()
		if errors.Is(err, host.ErrReplaced) && r.w.group != nil {
			r.w.group.claimAgain(r, instance)
		}
	})
}

// over ends a life that has run out.
func (r *runner) over(l *life) {
	r.mu.Lock()
	was := r.life == l
	if was {
		r.life = nil
	}
	r.mu.Unlock()
	if was {
		r.w.record(check.Event{Kind: check.HostDown, Host: r.name})
	}
	l.engines.kill()
	l.cancel()
}

// crash ends a life without a word: its engines die, its connections break.
func (r *runner) crash() {
	r.mu.Lock()
	l := r.life
	r.life = nil
	r.mu.Unlock()
	if l == nil {
		return
	}
	r.w.record(check.Event{Kind: check.HostDown, Host: r.name})
	l.link.kill()
	l.mu.Lock()
	calls := l.conns
	l.conns = nil
	l.mu.Unlock()
	for c := range calls {
		c.broken()
	}
	l.engines.kill()
	l.cancel()
}

// stop ends a life in order.
func (r *runner) stop() {
	if l := r.current(); l != nil {
		l.mu.Lock()
		l.stops = true
		l.mu.Unlock()
		r.w.record(check.Event{Kind: check.HostStops, Host: r.name})
		l.cancel()
	}
}

// startAfter brings the runner back if its machine is on then.
func (r *runner) startAfter(d time.Duration) {
	time.AfterFunc(d, func() {
		if l := r.current(); l != nil && !l.ready() {
			select {
			case <-l.ended:
			case <-time.After(5 * time.Minute):
			}
		}
		if r.machine.runs() {
			r.start()
		}
	})
}

// call is a request at a runner: what breaks when either side dies.
type call struct {
	once sync.Once
	gone chan struct{}
}

func (c *call) broken() { c.once.Do(func() { close(c.gone) }) }

// connect opens a call, nil when the runner is down.
func (r *runner) connect() (*life, *call) {
	l := r.current()
	if l == nil {
		return nil, nil
	}
	c := &call{gone: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		return nil, nil
	}
	l.conns[c] = struct{}{}
	return l, c
}

func (l *life) disconnect(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}
