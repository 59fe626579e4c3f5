package sweep_test

import (
	"errors"
	"testing"
	"time"

	"reveille/infra/state"
)

// A host outside the catalog is forgotten a day after its last sign of life; a host in the catalog, or with work,
// is not.
func TestDepartedHostIsForgotten(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box", "chat")
		p.boot("old", "chat")
		if err := p.store.Forget(ctx, "old", 0); !errors.Is(err, state.ErrWanted) {
			t.Fatal("a host that is awake:", err)
		}
		for _, b := range p.boxes {
			b.on = false
		}
		for range 3 {
			p.after(11 * time.Second)
			p.sweepAlone(settings)
		}
		equal(t, "state", p.field("host:old", "state"), "lost")
		p.after(23 * time.Hour)
		p.sweepAlone(settings)
		equal(t, "within the day", p.field("host:old", "state"), "lost")
		ticket := p.want("gw", "chat", "old")
		p.after(time.Hour)
		if err := p.store.Forget(ctx, "old", 24*time.Hour); !errors.Is(err, state.ErrWanted) {
			t.Fatal("a host with work:", err)
		}
		p.must(p.store.EndOverdueWake(ctx, "old", ticket.WakeToken, "no_capacity", "gone"))
		p.after(25 * time.Hour)
		equal(t, "sweep", summary(p.sweepAlone(settings)), "forget old done, sleep box done")
		s, err := p.store.Snapshot(ctx)
		p.must(err)
		if s.Hosts["old"] != nil || s.Hosts["box"] == nil {
			t.Fatal("hosts:", s.Hosts)
		}
		keys, err := p.rdb.Keys(ctx, "*:old*").Result()
		p.must(err)
		equal(t, "keys that name the host", len(keys), 0)
		if err := p.store.Forget(ctx, "old", 0); !errors.Is(err, state.ErrGone) {
			t.Fatal("forgotten twice:", err)
		}
		p.must(p.rdb.HSet(ctx, "rv:{main}:host:new", "state", "asleep").Err()) // such as a lease leaves
		p.must(p.rdb.SAdd(ctx, "rv:{main}:hosts", "new").Err())
		done := p.sweepAlone(settings).Actions
		if len(done) != 1 || done[0].Reason != "not in the catalog, and has not registered" {
			t.Errorf("a record without a sign of life: %+v", done)
		}
	})
}
