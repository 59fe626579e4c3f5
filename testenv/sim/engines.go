package sim

import (
	"context"
	"errors"
	"hash/fnv"
	"sync"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/runner/engine"
	"reveille/runner/fairqueue"
	"reveille/runner/host"
	"reveille/runner/plan"
	"reveille/testenv/check"
)

// chance is a number that depends on the scenario's seed and the given words alone, so that taking a step away does not
// change what the others do.
func chance(seed uint64, words ...string) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for i := range b {
		b[i] = byte(seed >> (8 * i))
	}
	_, _ = h.Write(b[:])
	for _, w := range words {
		_, _ = h.Write([]byte(w))
		_, _ = h.Write([]byte{0})
	}
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// engines are the made-up engines of one life of a runner.
type engines struct {
	w    *world
	host string
	core *host.Host // of the same runner, set before it runs

	mu   sync.Mutex
	live map[int]*fake // by process
	dead bool          // the runner is gone
}

var (
	errStart = errors.New("engine: exit status 1")
	errGone  = errors.New("the runner is gone")
)

// Plan implements host.Engines.
func (e *engines) Plan(m *catalog.Model, _ *recipe.Recipe, _ recipe.Options, _ plan.Share) (plan.Plan, error) {
	return plan.Plan{Need: found[m.ID], Parallel: e.w.scenario.Copies.Parallel}, nil
}

// Check implements host.Engines.
func (*engines) Check(context.Context, *catalog.Model, *recipe.Recipe, recipe.Options) error {
	return nil
}

// Start implements host.Engines.
func (e *engines) Start(ctx context.Context, m *catalog.Model, _ *recipe.Recipe, _ recipe.Options, _ plan.Plan, _ engine.GPUs) (host.Engine, error) {
	e.mu.Lock()
	if e.dead {
		e.mu.Unlock()
		return nil, errGone
	}
	f := &fake{e: e, model: m.ID, pid: e.w.nextPID(), done: make(chan struct{})}
	if n := e.w.scenario.Copies.Parallel; n > 0 {
		f.turns = fairqueue.New(n)
	}
	e.live[f.pid] = f
	e.mu.Unlock()
	view := e.core.View()
	ticket, mark := view.Ticket, ""
	var cards policy.GPUMemory
	for _, one := range view.Models {
		if one.ID == m.ID && !one.Retired {
			cards = one.GPUMemory
		}
	}
	if e.w.redis.HGet(prefix+"ticket:"+ticket, "options") != "" {
		mark = "explicit"
	}
	e.w.record(check.Event{Kind: check.Spawn, Host: e.host, Model: m.ID, PID: f.pid, Ticket: ticket, Text: mark, Cards: cards, View: &check.View{Queue: e.w.queue(e.host)}})
	err := e.w.orders.next(e.host, m.ID)
	n := chance(e.w.scenario.Seed, "load", e.host, m.ID, e.w.serial("load"+e.host+m.ID))
	took := time.Duration(20+n%1500) * time.Millisecond
	if n%11 == 0 {
		took *= 6
	}
	select {
	case <-time.After(took):
	case <-f.done:
		err = errStart
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		text := "error"
		if errors.Is(err, engine.ErrFileNotFound) {
			text = "file"
		}
		e.w.record(check.Event{Kind: check.Failed, PID: f.pid, Text: text})
		e.gone(f)
		return nil, err
	}
	e.w.record(check.Event{Kind: check.Ready, PID: f.pid})
	return f, nil
}

func (e *engines) gone(f *fake) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.live, f.pid)
}

// of is the newest process of a model, nil for none.
func (e *engines) of(model string) (newest *fake) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.live {
		if f.model == model && (newest == nil || f.pid > newest.pid) {
			newest = f
		}
	}
	return newest
}

// kill ends all processes with their runner.
func (e *engines) kill() {
	e.mu.Lock()
	e.dead = true
	var all []*fake
	for _, f := range e.live {
		all = append(all, f)
	}
	e.mu.Unlock()
	for _, f := range all {
		f.die()
	}
}

// fake is one engine process.
type fake struct {
	e     *engines
	model string
	pid   int
	turns *fairqueue.Queue // of its requests, nil for any number at a time
	done  chan struct{}
	once  sync.Once
	stop  sync.Once
}

func (f *fake) PID() int              { return f.pid }
func (f *fake) BaseURL() string       { return "http://" + f.e.host }
func (f *fake) APIKey() string        { return "" }
func (f *fake) Command() string       { return "fake " + f.model }
func (f *fake) Done() <-chan struct{} { return f.done }
func (f *fake) Err() error            { return nil }
func (f *fake) Client() *relay.Client { return nil }

func (f *fake) Kill(ctx context.Context) error { return f.Stop(ctx) }
func (f *fake) Measured() int64                { return 0 }
func (f *fake) Held() int64                    { return 0 }
func (f *fake) Features() host.Features        { return host.Features{} }

// Stop implements host.Engine.
func (f *fake) Stop(ctx context.Context) error {
	f.stop.Do(func() {
		r := f.e.w.runnerOf(f.e)
		if r == nil {
			return
		}
		f.e.w.record(check.Event{Kind: check.StopBegin, PID: f.pid, View: f.e.w.account(r)})
		n := chance(f.e.w.scenario.Seed, "stop", f.e.host, f.model, f.e.w.serial("stop"+f.e.host+f.model))
		took := time.Duration(n%400) * time.Millisecond
		if n%9 == 0 {
			took += 3 * time.Second
		}
		go func() {
			select {
			case <-time.After(took):
				f.end(false)
			case <-f.done:
			}
		}()
	})
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// die ends the process by itself.
func (f *fake) die() { f.end(true) }

func (f *fake) end(byItself bool) {
	f.once.Do(func() {
		if byItself {
			f.e.w.record(check.Event{Kind: check.Died, PID: f.pid})
		}
		f.e.w.record(check.Event{Kind: check.Exit, PID: f.pid})
		f.e.gone(f)
		close(f.done)
	})
}

// orders are failures that are still to come, by host and model.
type orders struct {
	mu   sync.Mutex
	fail map[[2]string][]error
}

func (o *orders) add(host, model string, n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for range n {
		o.fail[[2]string{host, model}] = append(o.fail[[2]string{host, model}], err)
	}
}

func (o *orders) next(host, model string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := [2]string{host, model}
	list := o.fail[key]
	if len(list) == 0 {
		return nil
	}
	o.fail[key] = list[1:]
	return list[0]
}
