package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/warmer/sweep"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const models = `
defaults: {idle: 10m}
models:
  chat: {type: llm, recipe: standin, device: cpu}
  embed: {type: embedding, recipe: standin, device: cpu, idle: 2h}
  kept: {type: audio, recipe: standin, device: cpu, pin: true}
  paint: {type: image, recipe: standin, device: gpu}
hosts:
  box: {driver: local, devices: [cpu]}
  far: {driver: exec, devices: [gpu], commands: {wake: [x], sleep: [x]}}
`

var settings = sweep.Settings{Pool: "main", SweepSettings: policy.SweepSettings{Idle: 10 * time.Minute, HostIdle: 15 * time.Minute, HostMinUp: 5 * time.Minute}, Location: time.UTC}

// fatal is the common part of testing.T and rapid.T.
type fatal interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// pool is a Redis with the test's own clock, the machines of its hosts and the runners on them.
type pool struct {
	t       fatal
	rdb     *redis.Client
	store   *state.Store
	clock   *atomic.Int64
	catalog *catalog.Catalog

	mu     sync.Mutex
	boxes  map[string]*box
	wakes  int
	sleeps int
	refuse error        // the driver's response to a wake
	onOff  func(string) // called while a machine is being turned off
	wrong  string       // the first violation found
	second func()       // called after each second that the clock moves
}

// box is one machine; its runner, when on, acts like package runner/host.
type box struct {
	on     bool
	gen    uint64
	models map[string]bool
	boots  int
}

func newPool(t fatal, addr, text string) *pool {
	t.Helper()
	p := &pool{t: t, rdb: redis.NewClient(&redis.Options{Addr: addr}), clock: &atomic.Int64{}, boxes: map[string]*box{}}
	p.clock.Store(time.Date(2026, 3, 2, 7, 0, 0, 0, time.UTC).UnixMilli()) // a Monday
	var err error
	p.store, err = state.Open(state.Options{URL: "redis://" + addr, Timeout: 10 * time.Second, Now: p.clock.Load})
	p.must(err)
	p.publish(text)
	return p
}

func (p *pool) close() {
	_ = p.store.Close()
	_ = p.rdb.Close()
}

func (p *pool) publish(text string) {
	p.t.Helper()
	c, _, err := catalog.Parse("models.yaml", []byte(text))
	p.must(err)
	raw, err := c.Marshal()
	p.must(err)
	_, err = p.store.PutCatalog(ctx, c.Version, raw, map[string]string{"box": "local"})
	p.must(err)
	p.catalog = c
}

// onBoth runs a test with redis-server and with the embedded Redis.
func onBoth(t *testing.T, test func(*testing.T, *pool)) {
	for name, addr := range map[string]func(*testing.T) string{
		"redis":     func(t *testing.T) string { return testenv.Redis(t) },
		"miniredis": func(t *testing.T) string { return testenv.MiniRedis(t).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, addr(t), models)
			t.Cleanup(p.close)
			test(t, p)
		})
	}
}

var ctx = context.Background()

func (p *pool) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// after moves the clock; running runners have sent beats meanwhile.
func (p *pool) after(d time.Duration) {
	if p.second != nil {
		for ; d > time.Second; d -= time.Second {
			p.clock.Add(time.Second.Milliseconds())
			p.second()
		}
	}
	p.clock.Add(d.Milliseconds())
	p.beat()
}

func (p *pool) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, b := range p.boxes {
		if b.on {
			p.beatLocked(name, b)
		}
	}
}

func (p *pool) beatLocked(name string, b *box) {
	p.t.Helper()
	_, _, err := p.store.Beat(ctx, name, b.gen, false, nil)
	if errors.Is(err, state.ErrUnknownHost) {
		p.registerLocked(name, b)
		return
	}
	p.must(err)
}

func (p *pool) registerLocked(name string, b *box) {
	p.t.Helper()
	info := state.HostInfo{Name: name, Boot: fmt.Sprint(b.boots), Addr: name + ":9", Devices: "cpu", Limits: "-1", Generation: b.gen}
	for _, m := range slices.Sorted(maps.Keys(b.models)) {
		info.Models = append(info.Models, state.ModelPut{ID: m, Fields: map[string]string{"type": "llm", "state": "loaded"}})
	}
	g, _, err := p.store.Register(ctx, info)
	p.must(err)
	b.gen = g
}

// boot turns a machine on with models loaded.
func (p *pool) boot(name string, loaded ...string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bootLocked(name, loaded...)
}

func (p *pool) bootLocked(name string, loaded ...string) {
	p.t.Helper()
	b := p.boxes[name]
	if b == nil {
		b = &box{}
		p.boxes[name] = b
	}
	if b.on {
		return
	}
	b.on, b.models = true, map[string]bool{}
	b.boots++
	for _, m := range loaded {
		b.models[m] = true
	}
	p.registerLocked(name, b)
}

// work lets the runners read Redis once, as real ones do after each event and beat.
func (p *pool) work() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.boxes)) {
		if b := p.boxes[name]; b.on {
			p.beatLocked(name, b)
			p.workLocked(name, b)
		}
	}
}

func (p *pool) workLocked(name string, b *box) {
	p.t.Helper()
	s, err := p.store.Snapshot(ctx)
	p.must(err)
	h := s.Hosts[name]
	if h.State == "asleep" || h.State == "waking" {
		return
	}
	for _, t := range h.Queue {
		switch err := p.store.Begin(ctx, name, b.gen, t.ID, state.NPUSeat{}); {
		case errors.Is(err, state.ErrDropped), errors.Is(err, state.ErrGone):
			continue
		default:
			p.must(err)
		}
		if t.Kind == "unload" {
			delete(b.models, t.Model)
			p.must(p.store.DropModel(ctx, name, b.gen, t.Model, "unloaded", false))
		} else {
			b.models[t.Model] = true
			p.must(p.store.PutModels(ctx, name, b.gen, []state.ModelPut{{ID: t.Model, Fields: map[string]string{"used_age_ms": "0", "type": "llm", "state": "loaded"}}}))
		}
		_, err := p.store.Finish(ctx, name, b.gen, t.ID, state.Outcome{})
		p.must(err)
	}
	if h.State == "draining" && h.Fields["sleep_token"] != "" && len(b.models) == 0 {
		err := p.store.ConfirmSleep(ctx, name, b.gen, h.Fields["sleep_token"], false)
		if err != nil && !errors.Is(err, state.ErrWanted) && !errors.Is(err, state.ErrGone) {
			p.t.Fatal("confirm: ", err)
		}
	}
}

// living lets the runners work until the returned function is called.
func (p *pool) living() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(2 * time.Millisecond):
				p.work()
			}
		}
	}()
	return func() { close(quit); <-done }
}

// switches is the power of the pool's machines, as a sweep sees it.
type switches struct{ p *pool }

func (w switches) Can(host string) bool { return host == "box" || strings.HasPrefix(host, "gpu-") }

func (w switches) Wake(_ context.Context, host string) error {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakes++
	if p.refuse != nil {
		return p.refuse
	}
	p.bootLocked(host)
	return nil
}

// Sleep turns a machine off. The point of these tests is that it sleeps and nothing is open on it then.
func (w switches) Sleep(ctx context.Context, host string) error {
	p := w.p
	if p.onOff != nil {
		p.onOff(host)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	p.sleeps++
	b := p.boxes[host]
	if b == nil || !b.on {
		return nil
	}
	if len(b.models) > 0 {
		p.wrong = fmt.Sprintf("%s is turned off with %v loaded", host, b.models)
	}
	if st := p.field("host:"+host, "state"); st != "asleep" {
		p.wrong = fmt.Sprintf("%s is turned off while it is %s", host, st)
	}
	b.on = false
	return nil
}

func (p *pool) deps(store sweep.Store) sweep.Deps {
	return sweep.Deps{Store: store, Power: func(*catalog.Catalog) sweep.Power { return switches{p} }}
}

// sweep runs a sweep while the runners work.
func (p *pool) sweep(s sweep.Settings) sweep.Report {
	p.t.Helper()
	defer p.living()()
	r, err := sweep.Run(ctx, p.deps(p.store), s)
	p.must(err)
	equal(p.t, "wrong", p.wrong, "")
	return r
}

// sweepAlone runs a sweep while the runners do nothing.
func (p *pool) sweepAlone(s sweep.Settings) sweep.Report {
	p.t.Helper()
	r, err := sweep.Run(ctx, p.deps(p.store), s)
	p.must(err)
	return r
}

// summary summarizes a report, one word per action.
func summary(r sweep.Report) string {
	var out []string
	for _, a := range r.Actions {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", a.Kind, a.Host+strings.TrimSuffix("/"+a.Model, "/"), strings.ReplaceAll(string(a.Result), " ", "-"))))
	}
	return strings.Join(out, ", ")
}

func (p *pool) field(key, field string) string {
	v, _ := p.rdb.HGet(ctx, "rv:{main}:"+key, field).Result()
	return v
}

func (p *pool) want(gateway, model, host string) state.Acquired {
	p.t.Helper()
	for range 20 {
		s, err := p.store.Snapshot(ctx)
		p.must(err)
		a, err := p.store.Acquire(ctx, state.Want{Gateway: gateway, Model: model, Host: host, Revision: s.RevisionOf(host, model)})
		if !errors.Is(err, state.ErrStale) {
			p.must(err)
			return a
		}
	}
	p.t.Fatal("the pool never settles")
	return state.Acquired{}
}

func (p *pool) on(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.boxes[host] != nil && p.boxes[host].on
}

func equal[T comparable](t fatal, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

var _ sweep.Power = (*power.Set)(nil)
