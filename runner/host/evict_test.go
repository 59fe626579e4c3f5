package host_test

import (
	"strings"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/runner/host"
)

// The least recently used model is slow to load. It is evicted by default; by cost, the model that loads fast is.
func TestCheapestModelToLoadIsEvictedByCost(t *testing.T) {
	for evict, want := range map[policy.EvictionPolicy]string{policy.LRU: "b", policy.Cost: "a"} {
		t.Run(string(evict), func(t *testing.T) {
			b := start(t, func(c *host.Config) { c.Limits, c.Evict, c.Price = policy.Uniform(2), evict, 2 })
			b.ready(b.load("a"))
			quick := time.Duration(b.record("a").LoadMS) * time.Millisecond
			gate := make(chan struct{})
			b.engines.mu.Lock()
			b.engines.gates["b"] = gate
			b.engines.mu.Unlock()
			ticket := b.load("b")
			b.until("b loads", func() bool { return b.engines.starts("b") == 1 })
			time.AfterFunc(max(500*time.Millisecond, 20*quick), func() { close(gate) })
			b.ready(ticket)
			b.busy("a")() // a is used after b
			if r := b.ready(b.load("c")); r.Evicted != want {
				t.Errorf("evicted %q, want %q", r.Evicted, want)
			}
		})
	}
}

// A model makes no room for another before it has been loaded for its min_loaded, however idle it is, nor is the
// host cleared for a load that failed. Its own reload and an unload do not wait for it, nor do they end it for others.
func TestMinLoaded(t *testing.T) {
	b := start(t)
	b.publish(strings.Replace(models, "models:", "defaults: {min_loaded: 1s}\nmodels:", 1))
	since := time.Now()
	b.ready(b.load("a"))
	other, reload := b.load("b"), b.ask(state.Want{Model: "a", OwnTicket: true, Fields: map[string]string{"options": `{"ctx_size":512}`}})
	b.ready(other)
	if kept := time.Since(since); kept < time.Second {
		t.Errorf("a was evicted after %v", kept)
	}
	b.ready(reload)
	b.ready(b.load("b"))
	b.publish(strings.Replace(models, "models:", "defaults: {min_loaded: 1h}\nmodels:", 1))
	b.ready(b.ask(state.Want{Model: "b", OwnTicket: true, Fields: map[string]string{"options": `{"ctx_size":512}`}}))
	b.engines.fails["e"] = []error{errLoad}
	b.failed(b.load("e"), "model_load_error")
	b.holds("b")
	if r := b.outcome(b.unload("b")); r.State != "ready" {
		t.Errorf("unload: %+v", r)
	}
	b.ready(b.load("c"))
}

// A load for work in the background starts only where no model must end for it, and makes room for any other at once.
func TestNoEvict(t *testing.T) {
	b := start(t)
	b.publish(strings.Replace(models, "models:", "defaults: {min_loaded: 1h}\nmodels:", 1))
	kindly := func(model string) string {
		return b.ask(state.Want{Model: model, OwnTicket: true, Unattended: true, Fields: map[string]string{state.FieldNoEvict: "1"}})
	}
	b.outcome(kindly("a"))
	b.failed(kindly("b"), "model_busy")
	b.holds("a")
	if r := b.ready(b.load("b")); r.Evicted != "a" {
		t.Errorf("%+v", r)
	}
	b.failed(kindly("a"), "model_busy")
	b.holds("b")
}

// A copy that was loaded for work in the background is unloaded for other such work once it is unused, unless something
// else has used it.
func TestMakesRoom(t *testing.T) {
	b := start(t)
	load := func() {
		b.Helper()
		b.ask(state.Want{Model: "a", OwnTicket: true, Unattended: true, Fields: map[string]string{state.FieldNoEvict: "1"}}) // nobody waits for it
		b.until("a is loaded", func() bool {
			r := b.record("a")
			return r != nil && r.State == "loaded" && r.Fields[state.FieldMakesRoom] == "1"
		})
	}
	unused := func(ms string) string { return b.unload("a", state.FieldUnusedMS, ms) }
	load()
	ref, refused := b.host.AcquireBackground("a", nil)
	if refused != "" {
		t.Fatal(refused)
	}
	b.failed(unused("0"), "model_busy")
	ref.Release()
	b.failed(unused("60000"), "model_busy")
	b.until("a is unloaded", func() bool { return b.outcome(unused("0")).State == "ready" })
	b.holds()
	for name, use := range map[string]func(){
		"a request":    func() { b.busy("a")() },
		"another load": func() { b.outcome(b.ask(state.Want{Model: "a", OwnTicket: true})) },
	} {
		load()
		use()
		b.failed(unused("0"), "model_busy")
		b.until(name+" shows in the record", func() bool { return b.record("a").Fields[state.FieldMakesRoom] == "0" })
		if r := b.outcome(b.unload("a")); r.State != "ready" {
			t.Errorf("%+v", r)
		}
	}
	b.ready(b.load("a"))
	b.failed(unused("0"), "model_busy")
}
