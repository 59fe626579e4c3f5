package host_test

import (
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/state"
	"reveille/runner/host"
)

// wantWeights asks for a model's weights alone.
func (b *bench) wantWeights(model string) string {
	b.Helper()
	return b.ask(state.Want{Model: model, OwnTicket: true, Fields: map[string]string{"pull_only": "1"}})
}

// A pull without a load fetches the weights, and nothing is loaded or evicted.
func TestPullOnlyLoadsNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		w := newWeights("b")
		gate := make(chan struct{})
		w.gates["b"] = gate
		b := startOn(t, addr, with(w))
		b.ready(b.load("a"))
		ticket := b.wantWeights("b")
		b.pulling(ticket)
		close(gate)
		if r := b.outcome(ticket); r.State != "ready" || r.Evicted != "" || r.Pulling {
			t.Errorf("%+v", r)
		}
		if r := b.outcome(b.wantWeights("b")); r.State != "ready" { // they are on the host
			t.Errorf("%+v", r)
		}
		if r := b.outcome(b.wantWeights("a")); r.State != "ready" { // it is even loaded
			t.Errorf("%+v", r)
		}
		b.holds("a")
		if n := b.engines.starts("b"); n != 0 || w.count("b") != 1 || !w.HasFiles(&catalog.Model{ID: "b"}) {
			t.Errorf("%d starts, %d pulls", n, w.count("b"))
		}
		b.ready(b.load("b"))
		if w.count("b") != 1 {
			t.Errorf("%d pulls", w.count("b"))
		}
	})
}

// A pull for a load and an explicit pull are one, and both report how it failed.
func TestPullOnlyAndLoadShareAPull(t *testing.T) {
	w := newWeights("b")
	gate := make(chan struct{})
	w.gates["b"] = gate
	w.fails["b"] = []error{&host.Error{Code: "disk_full", Message: "weights hf://o/r/b: no room", Final: true}}
	b := start(t, with(w))
	load, alone := b.load("b"), b.wantWeights("b")
	b.pulling(load)
	b.pulling(alone)
	close(gate)
	b.failed(load, "disk_full")
	b.failed(alone, "disk_full")
	if w.count("b") != 1 || b.engines.starts("b") != 0 {
		t.Errorf("%d pulls, %d starts", w.count("b"), b.engines.starts("b"))
	}
}
