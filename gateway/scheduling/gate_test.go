package scheduling

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/state"
)

func bubble(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

func enter(t *testing.T, g *Gate, a WaitRequest) *Waiter {
	t.Helper()
	w, err := g.Enter(a)
	if err != nil {
		t.Fatalf("Enter(%+v): %v", a, err)
	}
	return w
}

func wantKind(t *testing.T, err error, k api.Kind) {
	t.Helper()
	if !errors.Is(err, k) {
		t.Fatalf("got %v, want %v", err, k)
	}
}

// A store that a failover set back may reuse a ticket's number, for another gateway and another model. Waiters here
// must not get that ticket's outcome.
func TestTicketOfAnotherModel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		r := start(t, p, nil)
		w := enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(100 * time.Millisecond)
		p.publish(state.Event{Kind: "ticket", Ticket: "t1", Host: "a", Model: "m1", State: "failed", Fields: map[string]string{"code": "model_load_error"}})
		if endpoint, _, err := w.Result(); err != nil || endpoint.Host != "a" {
			t.Fatalf("%+v, %v", endpoint, err)
		}
	})
}

func TestStaleMirrorStillFindsTheLoadedCopy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a"), nil)
		r.Snapshot()
		r.set(func() { r.behind = true })
		r.loaded("a", "m0", 0)
		if _, ok := r.Endpoint("m0"); ok {
			t.Fatal("the mirror was meant to be behind")
		}
		endpoint, info, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result()
		if err != nil || endpoint.Host != "a" || info.Cold {
			t.Fatalf("%+v %+v %v", endpoint, info, err)
		}
	})
}

func TestStalePlacementIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		p.stale = 5
		r := start(t, p, nil)
		if _, _, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result(); err != nil {
			t.Fatal(err)
		}
		p.set(func() { p.stale = 1000 })
		_, info, err := enter(t, r.Gate, WaitRequest{Model: "m1"}).Result()
		wantKind(t, err, api.StateUnavailable)
		if info.Waited > 15*time.Second {
			t.Errorf("gave up after %v", info.Waited)
		}
	})
}

func TestRefusedMakesATicket(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a"), nil)
		r.loaded("a", "m0", 0)
		endpoint, info, err := enter(t, r.Gate, WaitRequest{Model: "m0", Refused: []string{"a"}}).Result()
		if err != nil || endpoint.Host != "a" || info.Ticket == "" {
			t.Fatalf("%+v %+v %v", endpoint, info, err)
		}
	})
}

// If one host refuses but another has the model, that copy serves the request and no further one is loaded.
func TestRefusedByOneHostGoesToAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a", "b"), nil)
		r.loaded("a", "m0", 0)
		r.loaded("b", "m0", 0)
		endpoint, info, err := enter(t, r.Gate, WaitRequest{Model: "m0", Refused: []string{"a"}}).Result()
		if err != nil || endpoint.Host != "b" || info.Ticket != "" {
			t.Fatalf("%+v %+v %v", endpoint, info, err)
		}
	})
}

func TestWaitThatRanOutKeepsTheLoad(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		p.loadTime = 20 * time.Second
		r := start(t, p, nil)
		enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(100 * time.Millisecond)
		_, info, err := enter(t, r.Gate, WaitRequest{Model: "m1", Limit: 3 * time.Second}).Result()
		wantKind(t, err, api.ModelLoading)
		if info.Waited != 3*time.Second {
			t.Errorf("waited %v", info.Waited)
		}
		time.Sleep(time.Minute)
		if p.loadsOf("m1") != 1 {
			t.Error("the load did not go on")
		}
	})
}

func TestLoadsWaitForRunnersToReportAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b")
		r := start(t, p, nil)
		r.loaded("b", "m0", 0)
		time.Sleep(2 * time.Second) // the gate has seen both hosts
		var b *state.HostRecord
		p.set(func() { b = p.hosts["b"]; delete(p.hosts, "b"); p.epoch = "2"; p.rev++ })
		w := enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(3 * time.Second)
		p.set(func() { p.hosts["b"] = b; p.rev++ })
		endpoint, _, err := w.Result()
		if err != nil || endpoint.Host != "b" || p.loadsOf("m0") != 0 {
			t.Fatalf("%+v, %v, %d loads: loaded a second time", endpoint, err, p.loadsOf("m0"))
		}
	})
}

// Loads wait ten seconds, and no longer, for a host that does not register again (faults 3 and 4).
func TestLoadsDoNotWaitForALostRunner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b")
		r := start(t, p, nil)
		time.Sleep(2 * time.Second) // the gate has seen both hosts
		p.set(func() { delete(p.hosts, "b"); p.epoch = "2"; p.rev++ })
		_, info, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result()
		if err != nil {
			t.Fatal(err)
		}
		if held := info.Waited - p.loadTime; held < 9*time.Second || held > 11*time.Second {
			t.Errorf("the load was held back for %v, want 10 s", held)
		}
	})
}

func TestStoreAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a"), nil)
		r.loaded("a", "m0", 0)
		r.Snapshot()
		w := enter(t, r.Gate, WaitRequest{Model: "m1"})
		time.Sleep(100 * time.Millisecond)
		r.set(func() { r.down, r.slow = true, 150*time.Millisecond }) // as long as a call may take
		if _, ok := r.Endpoint("m0"); !ok {
			t.Error("warm traffic ends with the store")
		}
		_, info, err := enter(t, r.Gate, WaitRequest{Model: "m2"}).Result()
		wantKind(t, err, api.StateUnavailable)
		if info.Waited > 300*time.Millisecond {
			t.Errorf("answered after %v", info.Waited)
		}
		_, info, err = w.Result()
		wantKind(t, err, api.StateUnavailable)
		if info.Waited < 10*time.Second || info.Waited > 13*time.Second {
			t.Errorf("a waiter with a ticket was given up after %v", info.Waited)
		}
	})
}

func TestStoreAwayForAShortWhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a"), nil)
		w := enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(500 * time.Millisecond)
		r.set(func() { r.down = true })
		time.Sleep(6 * time.Second)
		r.set(func() { r.down = false })
		if _, _, err := w.Result(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFailuresReachEveryWaiterAndOpenAWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		p.outcome = func(model string, n int) map[string]string {
			if model == "m0" && n <= 3 {
				return map[string]string{"code": "model_load_error", "message": "engine said no"}
			}
			if model == "m1" {
				return map[string]string{"code": "model_file_not_found", "message": "no file"}
			}
			return nil
		}
		r := start(t, p, nil)
		r.loadsOnlyOn("a", "m0")
		r.loadsOnlyOn("a", "m1")
		w1, w2 := enter(t, r.Gate, WaitRequest{Model: "m0"}), enter(t, r.Gate, WaitRequest{Model: "m0"})
		for _, w := range []*Waiter{w1, w2} {
			_, _, err := w.Result()
			wantKind(t, err, api.ModelLoadError)
			if e := api.As(err); e.Message != "engine said no" || !e.NoRetry {
				t.Errorf("got %+v", e)
			}
		}
		for _, window := range []time.Duration{2 * time.Second, 4 * time.Second} {
			_, _, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result() // one failure alone opens no window
			wantKind(t, err, api.ModelLoadError)
			_, err = r.Enter(WaitRequest{Model: "m0"})
			wantKind(t, err, api.ModelBackoff)
			if !strings.Contains(err.Error(), "engine said no") {
				t.Errorf("the cause is not repeated: %v", err)
			}
			if d := api.As(err).RetryAfter; d > window || d < window-time.Second {
				t.Errorf("advice %v, want about %v", d, window)
			}
			time.Sleep(window)
		}
		if _, _, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result(); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			_, _, err := enter(t, r.Gate, WaitRequest{Model: "m1"}).Result()
			wantKind(t, err, api.ModelFileNotFound)
		}
	})
}

func TestFailedLoadGoesToTheNextHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b")
		p.loadTime = 100 * time.Millisecond
		p.outcome = func(model string, n int) map[string]string {
			if model == "m1" || n%2 == 1 {
				return map[string]string{"code": "model_load_error", "message": "failure " + strconv.Itoa(n)}
			}
			return nil
		}
		r := start(t, p, nil)
		if _, _, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result(); err != nil || r.loadsOf("m0") != 2 {
			t.Errorf("%v after %d loads", err, r.loadsOf("m0"))
		}
		if _, _, err := r.Load(t.Context(), LoadRequest{Model: "m2", Wait: true}); err != nil || r.loadsOf("m2") != 2 {
			t.Errorf("explicit: %v after %d loads", err, r.loadsOf("m2"))
		}
		for _, want := range []string{"failure 2", "failure 4"} { // each host once for each request
			_, _, err := enter(t, r.Gate, WaitRequest{Model: "m1"}).Result()
			if wantKind(t, err, api.ModelLoadError); !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		_, err := r.Enter(WaitRequest{Model: "m1"})
		wantKind(t, err, api.ModelBackoff)
		_, _, err2 := r.Load(t.Context(), LoadRequest{Model: "m1", Wait: true})
		wantKind(t, err2, api.ModelLoadError) // it is tried
		if d := api.As(err).RetryAfter; d > 2*time.Second {
			t.Errorf("advice %v", d)
		}
	})
}

func TestWindowEndsWithANewCatalogEntry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		p.outcome = func(string, int) map[string]string { return map[string]string{"code": "load_timeout"} }
		r := start(t, p, nil)
		r.loadsOnlyOn("a", "m0")
		for range 2 {
			_, _, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result()
			wantKind(t, err, api.LoadTimeout)
		}
		r.cat.Store(testCatalog(t))
		r.loadsOnlyOn("a", "m0")
		_, err := r.Enter(WaitRequest{Model: "m0"})
		wantKind(t, err, api.ModelBackoff)
		m, _ := r.cat.Load().Model("m0")
		m.Memory = 1
		enter(t, r.Gate, WaitRequest{Model: "m0"}).Leave(false)
		time.Sleep(5 * time.Second)
		r.cat.Store(&catalog.Catalog{})
		time.Sleep(5 * time.Second)
		if n := len(r.loadBackoff.byKey) + len(r.failedEntries); n > 0 {
			t.Errorf("%d traces of a model that is gone", n)
		}
	})
}

func TestLimits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a"), func(c *Config) { c.MaxPerModel, c.MaxTotal = 2, 3 })
		for _, m := range []string{"m0", "m0", "m1"} {
			enter(t, r.Gate, WaitRequest{Model: m})
		}
		_, err := r.Enter(WaitRequest{Model: "m0"})
		wantKind(t, err, api.QueueFull)
		_, err = r.Enter(WaitRequest{Model: "m1"})
		wantKind(t, err, api.Overloaded)
		_, err = r.Enter(WaitRequest{Model: "nobody"})
		wantKind(t, err, api.ModelNotFound)
		if n := r.Waiting(); n["m0"] != 2 || n["m1"] != 1 {
			t.Errorf("waiting %v", n)
		}
		time.Sleep(10 * time.Second)
		enter(t, r.Gate, WaitRequest{Model: "m2"})
	})
}

func TestPinnedSlotsRefuseAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		p.hosts["a"].Limits = "1"
		r := start(t, p, nil)
		r.cat.Store(testCatalog(t))
		m, _ := r.cat.Load().Model("m1")
		m.Hosts = []string{"a"}
		r.loaded("a", "m0", 0)
		p.set(func() { p.hosts["a"].Models["m0"].Pinned = true })
		_, _, err := enter(t, r.Gate, WaitRequest{Model: "m1"}).Result()
		wantKind(t, err, api.SlotsPinned)
		_, _, err = r.Load(t.Context(), LoadRequest{Model: "m1", Wait: true})
		wantKind(t, err, api.SlotsPinnedConflict)
	})
}

// A queued load is acquired again for a request with a higher priority than all before.
func TestPriorityOfALoad(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a"), nil)
		enter(t, r.Gate, WaitRequest{Model: "m1"})
		time.Sleep(100 * time.Millisecond)
		for _, p := range []string{"low", "low", "", "low", "high", "high"} {
			enter(t, r.Gate, WaitRequest{Model: "m0", Priority: p})
			time.Sleep(100 * time.Millisecond)
		}
		r.set(func() {
			if got := r.pool.tickets["t2"].priorities; !slices.Equal(got, []string{"low", "normal", "high"}) {
				t.Errorf("acquired with %q", got)
			}
		})
	})
}

func TestStage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a"), nil)
		if _, _, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result(); err != nil {
			t.Fatal(err)
		}
		r.set(func() { delete(r.hosts["a"].Models, "m0"); r.rev++ })
		w := enter(t, r.Gate, WaitRequest{Model: "m1"})
		time.Sleep(100 * time.Millisecond)
		q := enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(900 * time.Millisecond)
		if s := w.Progress(); s.Stage != StageLoading || s.Host != "a" || s.Position != 0 || s.Waited != time.Second {
			t.Errorf("loading: %+v", s)
		}
		if s := q.Progress(); s.Stage != StageQueued || s.Position != 1 || s.ETA != 2*time.Second {
			t.Errorf("queued: %+v", s)
		}
		time.Sleep(2 * time.Second)
		if s := q.Progress(); s.Stage != StageLoading || s.ETA > 2*time.Second || s.ETA < time.Second {
			t.Errorf("then: %+v", s)
		}
	})
}

func TestBusyVictimIsNamedWhenTheWaitRunsOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool()
		p.host("c", "ready") // without a runner: what is queued there stays
		r := start(t, p, nil)
		r.cat.Store(testCatalog(t))
		m, _ := r.cat.Load().Model("m0")
		m.Hosts = []string{"c"}
		_, _, err := enter(t, r.Gate, WaitRequest{Model: "m0", Limit: 5 * time.Second}).Result()
		wantKind(t, err, api.ModelBusy)
	})
}

func TestManagedLoad(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b")
		r := start(t, p, nil)
		r.loaded("b", "m0", 0)
		pin := true
		endpoint, info, err := r.Load(t.Context(), LoadRequest{Model: "m0", Options: []byte(`{"ctx_size":4096}`), Pinned: &pin, Wait: true})
		if err != nil || endpoint.Host != "b" || info.Ticket == "" {
			t.Fatalf("%+v %+v %v", endpoint, info, err)
		}
		var f map[string]string
		p.set(func() { f = maps.Clone(p.tickets[info.Ticket].rec.Fields) })
		if f["options"] != `{"ctx_size":4096}` || f["pinned"] != "1" || f["own"] != "1" {
			t.Errorf("fields %v", f)
		}
		began := time.Now()
		if _, _, err := r.Load(t.Context(), LoadRequest{Model: "m1"}); err != nil || time.Since(began) > time.Second {
			t.Fatalf("not waiting: %v after %v", err, time.Since(began))
		}
		time.Sleep(10 * time.Second)
		if _, ok := r.Endpoint("m1"); !ok {
			t.Error("a queued load was not carried out")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err = r.Load(ctx, LoadRequest{Model: "m2", Wait: true})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestUnload(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b")
		r := start(t, p, nil)
		_, err := r.Unload(t.Context(), "m0", false)
		if !errors.Is(err, api.ModelNotLoaded) {
			t.Fatalf("got %v", err)
		}
		if out, err := r.Unload(t.Context(), "", false); err != nil || len(out) != 0 {
			t.Fatalf("%v %v", out, err)
		}
		r.loaded("a", "m0", 0)
		r.loaded("b", "m0", 0)
		r.loaded("b", "m1", 0)
		p.set(func() { p.mute = true })
		out, err := r.Unload(t.Context(), "m0", true)
		if err != nil || len(out) != 2 || out[0] != (UnloadResult{Host: "a", Model: "m0"}) || out[1] != (UnloadResult{Host: "b", Model: "m0"}) {
			t.Fatalf("%v %v", out, err)
		}
		out, err = r.Unload(t.Context(), "", false)
		if err != nil || len(out) != 1 || out[0].Model != "m1" {
			t.Fatalf("%v %v", out, err)
		}
		p.set(func() { p.down = true })
		_, err = r.Unload(t.Context(), "", false)
		wantKind(t, err, api.StateUnavailable)
	})
}

// A background load of a lost host is moved once. Whoever asks after that and after an eviction gets a new load.
func TestLostHostsBackgroundLoadIsMovedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b")
		r1, r2 := start(t, p, nil), start(t, p, nil)
		p.setState("a", "lost")
		p.set(func() { p.hosts["b"].State = "lost" })
		w, err := r1.Enter(WaitRequest{Model: "m0", DontWait: true})
		if err != nil {
			t.Fatal(err)
		}
		<-w.Done()
		time.Sleep(time.Second)
		p.setState("b", "ready")
		for i, r := range []*rig{r1, r2, r1} {
			endpoint, info, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result()
			if err != nil || endpoint.Host != "b" || p.loadsOf("m0") != i+1 {
				t.Fatalf("request %d: %+v %+v %v after %d loads, want one more for each", i, endpoint, info, err, p.loadsOf("m0"))
			}
			p.set(func() { delete(p.hosts["b"].Models, "m0"); p.rev++ }) // evicted
		}
	})
}

// A load that was promised to a request that does not wait starts, even if the request that it joined leaves before
// there is a ticket.
func TestPromisedLoadStarts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		r := start(t, p, nil)
		p.set(func() { p.stale = 10 })
		w := enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(100 * time.Millisecond)
		enter(t, r.Gate, WaitRequest{Model: "m0", DontWait: true})
		w.Leave(false)
		time.Sleep(time.Minute)
		if n := p.loadsOf("m0"); n != 1 {
			t.Errorf("%d loads, want one", n)
		}
	})
}

func TestLostOnlyHostIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		r := start(t, p, nil)
		r.cat.Store(testCatalog(t))
		m, _ := r.cat.Load().Model("m0")
		m.Hosts = []string{"a"}
		w := enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(time.Second)
		p.setState("a", "lost")
		time.Sleep(30 * time.Second)
		p.setState("a", "ready")
		if endpoint, _, err := w.Result(); err != nil || endpoint.Host != "a" {
			t.Fatalf("%+v %v", endpoint, err)
		}
	})
}

func TestErrorsTellNoHost(t *testing.T) {
	e := noCapacity("m", errors.New("exec: secret-host: no"))
	if strings.Contains(e.Message, "secret") {
		t.Error(e.Message)
	}
	f := failure(state.TicketRecord{ID: "1", Host: "secret-host", Code: "unheard_of", State: "failed"}, false)
	if f.Kind != api.ModelLoadError || strings.Contains(f.Message, "secret") {
		t.Errorf("%+v", f)
	}
}
