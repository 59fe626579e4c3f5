package host_test

import (
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/host"
)

func TestUnloadLetsRequestsFinish(t *testing.T) {
	b := start(t, func(c *host.Config) { c.DrainTimeout = time.Minute })
	b.ready(b.load("a"))
	leave := b.busy("a")
	ticket := b.unload("a")
	b.until("a drains", func() bool { r := b.record("a"); return r != nil && r.State == "draining" })
	if _, refused := b.enter("a", ""); refused != rpc.RefusedNotLoaded {
		t.Errorf("draining model: %q", refused)
	}
	leave()
	if r := b.outcome(ticket); r.State != "ready" {
		t.Errorf("%+v", r)
	}
	b.holds()
	b.failed(b.unload("a"), "model_not_loaded")
}

// A retired engine takes no new request, ends when its open ones are done, and makes room for another engine of its
// model, immediately if one is requested meanwhile.
func TestUnloadSuspectUnloadsTheModelOnce(t *testing.T) {
	b := start(t, func(c *host.Config) { c.DrainTimeout = time.Minute })
	b.ready(b.load("a"))
	leave, old := b.busy("a"), b.host.EngineOf("a")
	for range 2 {
		b.host.UnloadSuspect("a", old, "invalid responses")
		if _, refused := b.enter("a", ""); refused != rpc.RefusedNotLoaded {
			t.Errorf("retired model: %q", refused)
		}
	}
	waiting := b.load("a")
	b.until("a drains", func() bool { r := b.record("a"); return r != nil && r.State == "draining" })
	if b.host.EngineOf("a") != old {
		t.Error("the engine of an open request was ended")
	}
	leave()
	b.ready(waiting)
	b.holds("a")
	b.host.UnloadSuspect("a", old, "invalid responses") // the slot is another engine's now
	b.host.UnloadSuspect("b", old, "invalid responses")
	b.busy("a")()
	if n := b.engines.starts("a"); n != 2 {
		t.Errorf("%d starts, want 2", n)
	}
}

func TestUnloadCutsRequestsAfterItsTimeout(t *testing.T) {
	for name, fields := range map[string][]string{"at the end of its time": nil, "immediately by force": {"force", "1"}} {
		t.Run(name, func(t *testing.T) {
			b := start(t, func(c *host.Config) {
				if c.DrainTimeout = 50 * time.Millisecond; fields != nil {
					c.DrainTimeout = time.Minute
				}
			})
			b.ready(b.load("a"))
			b.busy("a")
			if r := b.outcome(b.unload("a", fields...)); r.State != "ready" {
				t.Errorf("%+v", r)
			}
			b.holds()
		})
	}
}

// Force cuts the requests that an earlier unload lets finish.
func TestForcedUnloadShortensADrain(t *testing.T) {
	b := start(t, func(c *host.Config) { c.DrainTimeout = time.Minute })
	b.ready(b.load("a"))
	b.busy("a")
	first := b.unload("a")
	b.until("a drains", func() bool { r := b.record("a"); return r != nil && r.State == "draining" })
	for _, ticket := range []string{b.unload("a", "force", "1"), first} {
		if r := b.outcome(ticket); r.State != "ready" {
			t.Errorf("%+v", r)
		}
	}
}

func TestUnloadSparesBusyModels(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	leave := b.busy("a")
	b.failed(b.unload("a", "only_idle_ms", "0"), "model_busy")
	leave()
	b.failed(b.unload("a", "only_idle_ms", "60000"), "model_busy")
	if r := b.outcome(b.unload("a", "only_idle_ms", "0")); r.State != "ready" {
		t.Errorf("%+v", r)
	}
	b.ready(b.load("p"))
	b.failed(b.unload("p", "only_idle_ms", "0"), "model_busy") // pinned
}

// A spare copy takes no new requests and finishes its open ones, for which its ticket does not wait.
func TestSpareCopyFinishesItsRequests(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	b.failed(b.unload("a", "spare_ms", "60000"), "model_busy") // loaded a moment ago
	b.until("a beat has told since when the copy is spare", func() bool { return b.record("a").NeededMS > 0 })
	b.failed(b.unload("a", "spare_ms", "0"), "model_busy") // no other copy serves
	_, _, err := b.store.Register(b.Context(), state.HostInfo{Name: "other", Boot: "1", Addr: "127.0.0.1:2", Models: []state.ModelPut{
		{ID: "a", Fields: map[string]string{"type": "llm", "state": "loaded"}},
	}})
	b.must(err)
	leave := b.busy("a")
	if r := b.outcome(b.unload("a", "spare_ms", "0")); r.State != "ready" {
		t.Errorf("%+v", r)
	}
	if _, refused := b.enter("a", ""); refused != rpc.RefusedNotLoaded {
		t.Errorf("spare copy: %q", refused)
	}
	if n := len(b.host.View().Models); n != 1 {
		t.Errorf("%d copies with the open request, want 1", n)
	}
	leave()
	b.until("the copy is gone", func() bool { return len(b.host.View().Models) == 0 })
	b.failed(b.unload("a", "spare_ms", "0"), "model_not_loaded")
	b.ready(b.load("p"))
	b.failed(b.unload("p", "spare_ms", "0"), "model_busy") // pinned
}

func TestUnloadWaitsForALoad(t *testing.T) {
	b := start(t)
	gate := make(chan struct{})
	b.engines.gates["a"] = gate
	loading := b.load("a")
	b.until("a loads", func() bool { return b.record("a") != nil })
	unload := b.unload("a", "force", "1")
	close(gate)
	b.outcome(loading)
	if r := b.outcome(unload); r.State != "ready" {
		t.Errorf("%+v", r)
	}
	b.holds()
}

// A load's victim that is itself unloaded is gone exactly once and delays nobody, whatever becomes of the load.
func TestVictimCanBeUnloaded(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	leave := b.busy("a")
	waiting := b.load("b")
	unload := b.unload("a")
	time.Sleep(50 * time.Millisecond)
	leave()
	b.outcome(unload)
	b.ready(waiting)
	b.holds("b")
}

// An engine that cannot be ended keeps its slot, fails what needs it, and frees the slot when it ends after all.
func TestStuckEngineKeepsItsSlot(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	a := b.engines.of("a")
	a.stuck.Store(true)
	b.failed(b.load("b"), rpc.CodeModelLoadError)
	b.holds("a")
	b.failed(b.unload("a"), "engine_crashed")
	waiting := b.load("b")
	b.ready(b.load("e")) // another type has a free slot
	a.die()
	b.ready(waiting)
	b.holds("b", "e")
	b.engines.of("b").stuck.Store(true) // and the runner still ends
}

func TestCrashFreesTheSlot(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	leave := b.busy("a")
	waiting := b.load("b")
	began := time.Now()
	b.engines.of("a").die()
	b.until("record is gone", func() bool { return b.record("a") == nil })
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("the record stayed %v", d)
	}
	b.ready(waiting)
	leave()
	b.ready(b.load("a"))
	if s := b.host.Stats(); s.Crashes != 1 {
		t.Errorf("%+v", s)
	}
}

func TestCrashDuringADrainFreesTheSlot(t *testing.T) {
	b := start(t, func(c *host.Config) { c.DrainTimeout = time.Minute })
	b.ready(b.load("a"))
	leave := b.busy("a")
	unload := b.unload("a")
	b.until("a drains", func() bool { r := b.record("a"); return r != nil && r.State == "draining" })
	b.engines.of("a").die()
	b.until("record is gone", func() bool { return b.record("a") == nil })
	leave() // its connection broke
	b.outcome(unload)
}

// A request in the background is no use of its model. No unload and no load waits for it: it is cut.
func TestBackgroundIsCut(t *testing.T) {
	b := start(t, func(c *host.Config) { c.DrainTimeout, c.FairAfter = time.Minute, time.Minute })
	for name, end := range map[string]func(){
		"an unload of an idle model": func() {
			if r := b.outcome(b.unload("a", "only_idle_ms", "0")); r.State != "ready" {
				t.Errorf("%+v", r)
			}
		},
		"a load": func() { b.ready(b.load("b")) },
	} {
		b.ready(b.load("a"))
		used := b.host.View().Models[0].Used
		why, passes := make(chan error, 1), make(chan *host.Ref, 1)
		p, refused := b.host.AcquireBackground("a", func(cause error) { (<-passes).Release(); why <- cause })
		if refused != "" {
			t.Fatal(refused)
		}
		passes <- p
		if m := b.host.View().Models[0]; m.Used != used || m.InFlight != 0 {
			t.Errorf("%s: %+v", name, m)
		}
		end()
		b.cutWith(why, host.ErrCut)
	}
}
