package scheduling

import (
	"testing"
	"time"

	"reveille/infra/state"
)

// Every gateway reports a load's progress, whoever waits for it.
func TestProgressOf(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		r, other := start(t, p, nil), start(t, p, nil)
		w := enter(t, r.Gate, WaitRequest{Model: "m1"})
		time.Sleep(100 * time.Millisecond)
		q := enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(900 * time.Millisecond)
		for model, waiter := range map[string]*Waiter{"m1": w, "m0": q} {
			want := waiter.Progress()
			for name, g := range map[string]*Gate{"its waiter's": r.Gate, "another": other.Gate} {
				got, ok := g.ProgressOf(model)
				if !ok || got.Stage != want.Stage || got.Host != want.Host || got.Position != want.Position {
					t.Errorf("%s gate tells of %s %+v, %v; its waiter hears %+v", name, model, got, ok, want)
				}
			}
			if got, _ := r.ProgressOf(model); got.Waited != want.Waited {
				t.Errorf("%s: waited %v, want %v", model, got.Waited, want.Waited)
			}
		}
		if got, ok := r.ProgressOf("m2"); ok {
			t.Errorf("of a model that nobody wants: %+v", got)
		}
	})
}

// The oldest of a model's loads counts, and its times follow the store's clock.
func TestPending(t *testing.T) {
	ticket := func(id, kind, model string, st state.TicketState, created int64) state.TicketRecord {
		return state.TicketRecord{ID: id, Kind: kind, Model: model, State: st, Created: created, Fields: map[string]string{"begun_ms": "70000"}}
	}
	s := &state.Snapshot{NowMS: 100_000, Taken: t0, Hosts: map[string]*state.HostRecord{
		"a": {Queue: []state.TicketRecord{ticket("1", "load", "x", "loading", 1), ticket("2", "unload", "m", "queued", 2), ticket("3", "load", "m", "queued", 60_000)}},
		"b": {Queue: []state.TicketRecord{ticket("4", "load", "m", "loading", 50_000)}},
		"c": {Queue: []state.TicketRecord{ticket("5", "load", "m", "queued", 50_000)}},
	}}
	n, waited := pending(s, "m", t0.Add(time.Second))
	if n == nil || n.ticket != "4" || n.host != "b" || n.state != "loading" || n.position != 0 || waited != 51*time.Second || !n.loadingSince.Equal(t0.Add(-30*time.Second)) {
		t.Errorf("got %+v after %v", n, waited)
	}
	delete(s.Hosts, "b")
	delete(s.Hosts, "c")
	if n, waited := pending(s, "m", t0); n == nil || n.ticket != "3" || n.position != 2 || waited != 40*time.Second || !n.loadingSince.IsZero() {
		t.Errorf("got %+v after %v", n, waited)
	}
	if n, _ := pending(s, "nobody", t0); n != nil {
		t.Errorf("got %+v", n)
	}
}
