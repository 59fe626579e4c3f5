package state_test

import (
	"errors"
	"testing"
	"time"

	"reveille/infra/state"
)

// TestSpareCopies lets the copies of a model leave one by one: of n copies, the next one a share of 1 / n of the idle time
// after the one before it, whatever the runners' own observations say, and the last one that serves never.
func TestSpareCopies(t *testing.T) {
	const idle = 10 * time.Minute
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		generations := map[string]uint64{}
		for _, h := range []string{"a", "b", "c"} {
			generations[h] = register(t, s, h, map[string]string{"m": "llm"})
		}
		beat := func(hosts ...string) {
			t.Helper()
			for _, h := range hosts {
				_, _, err := s.Beat(ctx, h, generations[h], true, map[string]state.Use{"m": {Open: 1, NeededAge: time.Hour}})
				must(t, err)
			}
		}
		put := func(host, st string) {
			t.Helper()
			must(t, s.PutModels(ctx, host, generations[host], []state.ModelPut{{ID: "m", Fields: map[string]string{"type": "llm", "state": st}}}))
		}
		leave := func(what, host string, want error) {
			t.Helper()
			snap, err := s.Snapshot(ctx)
			must(t, err)
			a := acquire(t, s, state.Want{
				Gateway: "sweep", Model: "m", Unload: true, Host: host, Revision: snap.RevisionOf(host, ""), Unattended: true,
				Fields: map[string]string{"spare_ms": "600000"},
			})
			if err := s.Begin(ctx, host, generations[host], a.Ticket, state.NPUSeat{}); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Fatalf("%s: %v, want %v", what, err, want)
			} else if err == nil {
				before := b.dump()
				must(t, s.Begin(ctx, host, generations[host], a.Ticket, state.NPUSeat{})) // the first reply was lost
				equal(t, "state after a repetition", b.dump(), before)
			}
			_, err = s.Finish(ctx, host, generations[host], a.Ticket, state.Outcome{Failed: want != nil})
			must(t, err)
		}

		leave("no beat has said since when it is spare", "a", state.ErrNeeded)
		beat("a", "b", "c")
		leave("the first", "a", nil)
		beat("a", "b", "c")
		leave("another one on the same observation", "b", state.ErrNeeded)
		put("a", "draining")
		b.after(idle/3 - time.Second)
		beat("a", "b", "c")
		leave("before its time", "b", state.ErrNeeded)
		b.after(time.Second)
		leave("after a third of the idle time without the first", "b", nil)

		b.after(idle)
		beat("c")
		leave("all others are silent or going", "c", state.ErrNeeded)
		beat("b")
		put("b", "draining")
		leave("all others are going", "c", state.ErrNeeded)
		put("b", "loaded")
		leave("another one serves", "c", nil)
	})
}
