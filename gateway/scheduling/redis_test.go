package scheduling_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/state"
	"reveille/testenv"
)

const models = `
models:
  any: {type: llm, recipe: standin, device: cpu, hosts: [near, far]}
  one: {type: llm, recipe: standin, device: cpu, hosts: [near]}
  two: {type: llm, recipe: standin, device: cpu, hosts: [near]}
  bad: {type: llm, recipe: standin, device: cpu, hosts: [near]}
hosts:
  near: {driver: exec, devices: [cpu], commands: {wake: ["true"], sleep: ["true"]}}
  far: {driver: exec, devices: [cpu], commands: {wake: ["true"], sleep: ["true"]}}
`

// onBoth runs a test on redis-server and on the embedded Redis.
func onBoth(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("redis", func(t *testing.T) { test(t, "redis://"+testenv.Redis(t)) })
	t.Run("miniredis", func(t *testing.T) { test(t, "redis://"+testenv.MiniRedis(t).Addr()) })
}

// system is two gates on one Redis, and hosts whose runners start once they are woken.
type system struct {
	t      *testing.T
	url    string
	cat    *catalog.Catalog
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	refuse string // host whose driver refuses

	mu    sync.Mutex
	wakes map[string]int
	loads map[string]int
}

func newSystem(t *testing.T, url string) *system {
	cat, _, err := catalog.Parse("models.yaml", []byte(models))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &system{t: t, url: url, cat: cat, ctx: ctx, cancel: cancel, wakes: map[string]int{}, loads: map[string]int{}}
	t.Cleanup(cancel)
	return s
}

func (s *system) store() *state.Store {
	st, err := state.Open(state.Options{URL: s.url, Timeout: 5 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.cancel(); s.work.Wait(); _ = st.Close() })
	return st
}

func (s *system) gate() *scheduling.Gate {
	st := s.store()
	var g *scheduling.Gate
	m := state.NewMirror(st, func(e state.Event) { g.OnEvent(e) })
	g = scheduling.New(scheduling.Config{Store: st, Mirror: m, Catalog: func() *catalog.Catalog { return s.cat }, Waker: s, Hold: time.Minute})
	s.t.Cleanup(func() { g.Close() })
	s.work.Go(func() { m.Run(s.ctx) })
	s.work.Go(func() { g.Run(s.ctx) })
	return g
}

// Wake starts the host's runner.
func (s *system) Wake(_ context.Context, host string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakes[host]++
	if host == s.refuse {
		return errors.New("no capacity")
	}
	st := s.store()
	s.work.Go(func() { s.runner(st, host) })
	return nil
}

// runner registers a host and carries out its queue until the test ends.
func (s *system) runner(st *state.Store, host string) {
	gen, _, err := st.Register(s.ctx, state.HostInfo{Name: host, Boot: "b", Addr: host + ".test:1", Devices: "cpu", Limits: "-1"})
	if err != nil {
		s.t.Error(err)
		return
	}
	for s.ctx.Err() == nil {
		snap, err := st.Snapshot(s.ctx)
		if err == nil && len(snap.Hosts[host].Queue) > 0 {
			s.carryOut(st, host, gen, snap.Hosts[host].Queue[0])
		}
		_, _, _ = st.Beat(s.ctx, host, gen, false, nil)
		select {
		case <-s.ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *system) carryOut(st *state.Store, host string, gen uint64, t state.TicketRecord) {
	if st.Begin(s.ctx, host, gen, t.ID, state.NPUSeat{}) != nil {
		return
	}
	out := state.Outcome{Fields: map[string]string{"cold": "1", "load_ms": "5"}}
	switch {
	case t.Kind == "unload":
		_ = st.DropModel(s.ctx, host, gen, t.Model, "unload", false)
	case t.Model == "bad":
		out = state.Outcome{Failed: true, Fields: map[string]string{"code": "model_file_not_found", "message": "no such file"}}
	default:
		s.mu.Lock()
		s.loads[t.Model]++
		s.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		_ = st.PutModels(s.ctx, host, gen, []state.ModelPut{{ID: t.Model, Fields: map[string]string{"used_age_ms": "0", "type": "llm", "state": "loaded", "device": "cpu"}}})
	}
	_, _ = st.Finish(s.ctx, host, gen, t.ID, out)
}

func TestAgainstTheStore(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := newSystem(t, url)
		gates := []*scheduling.Gate{s.gate(), s.gate()}

		var ws []*scheduling.Waiter
		for i := range 60 {
			w, err := gates[i%2].Enter(scheduling.WaitRequest{Model: []string{"one", "two", "bad"}[i/2%3]})
			if err != nil {
				t.Fatal(err)
			}
			ws = append(ws, w)
		}
		for i, w := range ws {
			r, info, err := w.Result()
			switch {
			case i/2%3 == 2:
				if !errors.Is(err, api.ModelFileNotFound) {
					t.Fatalf("waiter %d: %v", i, err)
				}
			case err != nil || r.Host != "near" || r.Addr != "near.test:1" || r.Generation == 0 || !info.Cold:
				t.Fatalf("waiter %d: %+v %+v %v", i, r, info, err)
			}
		}
		s.mu.Lock()
		counts := fmt.Sprint(s.wakes, s.loads)
		s.mu.Unlock()
		if counts != "map[near:1] map[one:1 two:1]" {
			t.Errorf("wakes and loads: %s", counts)
		}

		if r, _, err := gates[0].Load(t.Context(), scheduling.LoadRequest{Model: "one", Wait: true}); err != nil || r.Host != "near" {
			t.Fatalf("%+v %v", r, err)
		}
		out, err := gates[1].Unload(t.Context(), "", false)
		if err != nil || len(out) != 2 {
			t.Fatalf("%v %v", out, err)
		}
		if _, err := gates[0].Unload(t.Context(), "one", false); !errors.Is(err, api.ModelNotLoaded) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestNextHostAgainstTheStore(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := newSystem(t, url)
		s.refuse = "near"
		a, err := s.gate().Enter(scheduling.WaitRequest{Model: "any"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.gate().Enter(scheduling.WaitRequest{Model: "any"})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range []*scheduling.Waiter{a, b} {
			if r, _, err := w.Result(); err != nil || r.Host != "far" {
				t.Fatalf("%+v %v", r, err)
			}
		}
	})
}
