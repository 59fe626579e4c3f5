package state_test

import (
	"errors"
	"testing"

	"reveille/infra/state"
)

// A pull's progress belongs to a ticket in the queue of the caller's host, and affects no decision.
func TestPulled(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", nil)
		a := acquire(t, s, want(t, s, "gw", "m", "h"))
		before, err := s.Snapshot(ctx)
		must(t, err)
		if q := before.Hosts["h"].Queue[0]; q.Pulling || q.Pulled != (state.Pulled{}) {
			t.Errorf("before: %+v", q)
		}
		for _, far := range []state.Pulled{{}, {Done: 1 << 40, Total: 2 << 40}} {
			must(t, s.PutPulled(ctx, "h", g, a.Ticket, &far))
			snap, err := s.Snapshot(ctx)
			must(t, err)
			if q := snap.Hosts["h"].Queue[0]; !q.Pulling || q.Pulled != far || snap.Revision != before.Revision {
				t.Errorf("%+v at revision %d, want %+v at %d", q, snap.Revision, far, before.Revision)
			}
			if st := standing(t, s, "gw", a.Ticket); !st.Record.Pulling || st.Record.Pulled != far {
				t.Errorf("its waiter gets %+v", st.Record)
			}
		}
		refused := func(what string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		refused("an older generation", s.PutPulled(ctx, "h", g-1, a.Ticket, nil), state.ErrFenced)
		refused("an unknown host", s.PutPulled(ctx, "x", g, a.Ticket, nil), state.ErrUnknownHost)
		refused("an unknown ticket", s.PutPulled(ctx, "h", g, "none", nil), state.ErrGone)
		g2 := register(t, s, "h2", nil)
		refused("another host's ticket", s.PutPulled(ctx, "h2", g2, a.Ticket, nil), state.ErrGone)

		must(t, s.PutPulled(ctx, "h", g, a.Ticket, nil))
		equal(t, "over", standing(t, s, "gw", a.Ticket).Record.Pulling, false)
		must(t, s.PutPulled(ctx, "h", g, a.Ticket, &state.Pulled{Done: 1, Total: 2}))
		must(t, s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{}))
		equal(t, "once it loads", standing(t, s, "gw", a.Ticket).Record.Pulling, false)
		refused("a load that has begun", s.PutPulled(ctx, "h", g, a.Ticket, nil), state.ErrGone)
	})
}
