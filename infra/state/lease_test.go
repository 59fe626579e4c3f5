package state_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/testenv/kit"
)

// TestWaiterLease checks that a gateway that stops renewing is forgotten, and that a load without waiters is not
// started (invariants 9, 11).
func TestWaiterLease(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", nil)
		beat := func() { _, _, err := s.Beat(ctx, "h", g, false, nil); must(t, err) }
		a := acquire(t, s, want(t, s, "gw-1", "m", "h"))
		b.after(state.WaiterLease - time.Second)
		beat()
		standing(t, s, "gw-1", a.Ticket)
		b.after(state.WaiterLease - time.Second)
		beat()
		snap, err := s.Snapshot(ctx)
		must(t, err)
		equal(t, "waiters while renewed", snap.Hosts["h"].Queue[0].Waiters, 1)
		_, err = s.Renew(ctx, "gw-2", state.Renewal{Ticket: a.Ticket, Waiting: 5})
		must(t, err)
		equal(t, "requests that wait", standing(t, s, "gw-1", a.Ticket).Waiting, 6)
		b.after(state.WaiterLease - time.Second)
		beat()
		standing(t, s, "gw-1", a.Ticket)
		b.after(2 * time.Second)
		beat()
		equal(t, "requests that wait, without those of a gateway that has gone", standing(t, s, "gw-1", a.Ticket).Waiting, 1)
		b.after(state.WaiterLease + time.Second)
		snap, err = s.Snapshot(ctx)
		must(t, err)
		equal(t, "waiters after the lease", snap.Hosts["h"].Queue[0].Waiters, 0)
		if err := s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{}); !errors.Is(err, state.ErrDropped) {
			t.Fatal("begin:", err)
		}
		if err := s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{}); !errors.Is(err, state.ErrGone) {
			t.Fatal("begin again:", err)
		}
		equal(t, "standing", standing(t, s, "gw-1", a.Ticket).Record.State, "dropped")
		equal(t, "wanted", b.content(prefix+"wanted"), "")
	})
}

// TestLeave (invariant 11, ollama/ollama#8398) checks that a waiter that leaves affects no other waiter.
func TestLeave(t *testing.T) {
	tests := []struct {
		name    string
		waiters []string
		leave   []string
		begin   bool
		keep    bool
		want    string
	}{
		{name: "last, queued", waiters: []string{"a"}, leave: []string{"a"}, want: "dropped"},
		{name: "first of two", waiters: []string{"a", "b"}, leave: []string{"a"}, want: "queued"},
		{name: "both", waiters: []string{"a", "b"}, leave: []string{"a", "b"}, want: "dropped"},
		{name: "last, begun", waiters: []string{"a"}, leave: []string{"a"}, begin: true, want: "loading"},
		{name: "last, kept", waiters: []string{"a"}, leave: []string{"a"}, keep: true, want: "queued"},
		{name: "a stranger", waiters: []string{"a"}, leave: []string{"x"}, want: "queued"},
		{name: "twice", waiters: []string{"a", "b"}, leave: []string{"a", "a"}, want: "queued"},
	}
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		for i, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				host := fmt.Sprint("h", i)
				g := register(t, s, host, nil)
				var a state.Acquired
				for _, gw := range tt.waiters {
					a = acquire(t, s, want(t, s, gw, tt.name, host))
				}
				if tt.begin {
					must(t, s.Begin(ctx, host, g, a.Ticket, state.NPUSeat{}))
				}
				for _, gw := range tt.leave {
					must(t, s.ReleaseTicket(ctx, gw, a.Ticket, tt.keep))
				}
				equal(t, "state", b.field("ticket:"+a.Ticket, "state"), tt.want)
				if tt.keep {
					b.after(time.Hour)
					_, _, err := s.Beat(ctx, host, g, false, nil)
					must(t, err)
					must(t, s.Begin(ctx, host, g, a.Ticket, state.NPUSeat{}))
				}
			})
		}
	})
}

// TestFinishIsIdempotent checks that a runner that lost the response to its finish is told again
// who waits, so that it can keep the model for exactly those. The repeat changes nothing (invariant 26).
func TestFinishIsIdempotent(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", nil)
		load := func(model string, gateways ...string) string {
			t.Helper()
			var a state.Acquired
			for _, gw := range gateways {
				a = acquire(t, s, want(t, s, gw, model, "h"))
			}
			must(t, s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{}))
			return a.Ticket
		}
		finish := func(host string, g uint64, ticket string, o state.Outcome) string {
			t.Helper()
			before := b.dump()
			waiting, err := s.Finish(ctx, host, g, ticket, o)
			if !errors.Is(err, state.ErrGone) {
				t.Fatal("finish again:", err)
			}
			equal(t, "state after it", b.dump(), before)
			return strings.Join(waiting, " ")
		}

		ticket := load("m", "gw-1", "gw-2", "gw-3")
		ready := state.Outcome{Fields: map[string]string{"load_ms": "42", "cold": "1"}}
		first, err := s.Finish(ctx, "h", g, ticket, ready)
		must(t, err)
		equal(t, "waiters", strings.Join(first, " "), "gw-1 gw-2 gw-3")
		equal(t, "waiters, again", finish("h", g, ticket, ready), "gw-1 gw-2 gw-3")
		equal(t, "waiters of another outcome", finish("h", g, ticket, state.Outcome{Failed: true}), "")
		equal(t, "waiters for another host", finish("other", register(t, s, "other", nil), ticket, ready), "")
		equal(t, "waiters of no ticket", finish("h", g, "1", ready), "")

		must(t, s.ReleaseTicket(ctx, "gw-2", ticket, false))
		g = register(t, s, "h", map[string]string{"m": "llm"}) // as a runner does after a lost response
		equal(t, "waiters, when one has left", finish("h", g, ticket, ready), "gw-1 gw-3")
		b.after(state.WaiterLease + time.Second)
		equal(t, "waiters, when their leases are over", finish("h", g, ticket, ready), "")

		ticket = load("n", "gw-1")
		failed := state.Outcome{Failed: true, Fields: map[string]string{"code": "model_load_error"}}
		_, err = s.Finish(ctx, "h", g, ticket, failed)
		must(t, err)
		finish("h", g, ticket, failed)
	})
}

// TestLeaveAfterTheEnd checks that a model does not wait for a gateway that left after the load ended but before the
// gateway heard so.
func TestLeaveAfterTheEnd(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.patient()
		left := make(chan state.Event, 8)
		synced := make(chan struct{}, 8)
		runMirror(t, s, func(e state.Event) {
			switch e.Kind {
			case "sync":
				synced <- struct{}{}
			case "leave":
				left <- e
			}
		})
		kit.Eventually(t, "subscribed", func() bool { return len(synced) > 0 })
		g := register(t, s, "h", nil)
		a := acquire(t, s, want(t, s, "gw", "m", "h"))
		_, err := s.Finish(ctx, "h", g, a.Ticket, state.Outcome{})
		must(t, err)
		must(t, s.ReleaseTicket(ctx, "stranger", a.Ticket, false))
		must(t, s.ReleaseTicket(ctx, "gw", a.Ticket, true))
		must(t, s.ReleaseTicket(ctx, "gw", a.Ticket, false))
		mark := acquire(t, s, want(t, s, "gw", "mark", "h"))
		must(t, s.Begin(ctx, "h", g, mark.Ticket, state.NPUSeat{}))
		must(t, s.ReleaseTicket(ctx, "gw", mark.Ticket, false))
		kit.Eventually(t, "both to be heard of", func() bool { return len(left) == 2 })
		e := <-left
		equal(t, "who left", e.Gateway+" "+e.Ticket+" "+e.Model+" "+e.Host, "gw "+a.Ticket+" m h")
		e = <-left
		equal(t, "the next to leave", e.Ticket, mark.Ticket)
		equal(t, "background", b.field("ticket:"+a.Ticket, "background"), "0")
	})
}

// TestFencedWritersChangeNothing (invariants 16, 26).
func TestFencedWritersChangeNothing(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		old := register(t, s, "h", map[string]string{"m": "llm"})
		a := acquire(t, s, want(t, s, "gw", "m2", "h"))
		if g := register(t, s, "h", map[string]string{"m": "llm"}); g <= old {
			t.Fatalf("generation %d after %d", g, old)
		}
		writes := func(g uint64, host string) map[string]error {
			_, _, beat := s.Beat(ctx, host, g, true, map[string]state.Use{"m": {Open: 3}})
			_, finish := s.Finish(ctx, host, g, a.Ticket, state.Outcome{})
			return map[string]error{
				"beat": beat, "finish": finish,
				"put":   s.PutModels(ctx, host, g, []state.ModelPut{{ID: "m", Fields: map[string]string{"used_age_ms": "0", "type": "llm"}}}),
				"drop":  s.DropModel(ctx, host, g, "m", "", true),
				"begin": s.Begin(ctx, host, g, a.Ticket, state.NPUSeat{}),
				"state": s.SetHostState(ctx, host, g, "asleep"),
			}
		}
		before := b.dump()
		for name, err := range writes(old, "h") {
			if !errors.Is(err, state.ErrFenced) {
				t.Errorf("%s with an old generation: %v", name, err)
			}
		}
		for name, err := range writes(old, "nowhere") {
			if !errors.Is(err, state.ErrUnknownHost) {
				t.Errorf("%s of a host that Redis does not know: %v", name, err)
			}
		}
		equal(t, "state after refused writes", b.dump(), before)

		g := register(t, s, "h2", nil)
		before = b.dump()
		if _, err := s.Finish(ctx, "h2", g, a.Ticket, state.Outcome{}); !errors.Is(err, state.ErrGone) {
			t.Error("finishing another host's ticket:", err)
		}
		if err := s.Begin(ctx, "h2", g, a.Ticket, state.NPUSeat{}); !errors.Is(err, state.ErrGone) {
			t.Error("beginning another host's ticket:", err)
		}
		if err := s.PutModels(ctx, "h2", g, []state.ModelPut{{ID: "m"}}); err == nil {
			t.Error("a record without a type was written")
		}
		if _, _, err := s.Register(ctx, state.HostInfo{Name: "h2", Models: []state.ModelPut{{ID: "m"}}}); err == nil {
			t.Error("a host was registered with a record without a type")
		}
		equal(t, "state after refused writes", b.dump(), before)
	})
}

// TestLateRegistration (invariant 16) checks that a late registration, or one by a replaced runner, takes nothing from
// a later boot. A registration whose first response was lost, and one after Redis fell back to an older state, are
// accepted.
func TestLateRegistration(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		again := func(boot string, owned uint64) (uint64, error) {
			g, _, err := s.Register(ctx, state.HostInfo{Name: "h", Boot: boot, Generation: owned, Owned: owned})
			return g, err
		}
		first, err := again("boot-1", 0)
		must(t, err)
		second, err := again("boot-2", 0)
		must(t, err)
		before := b.dump()
		if _, err := again("boot-1", first); !errors.Is(err, state.ErrFenced) {
			t.Error("a late registration:", err)
		}
		equal(t, "state after it", b.dump(), before)
		lost, err := again("boot-2", second)
		must(t, err)
		if g, err := again("boot-2", second); err != nil || g <= lost {
			t.Errorf("after a lost response: generation %d after %d, %v", g, lost, err)
		}
		if _, err := again("boot-3", lost+1e9); err != nil {
			t.Error("with a generation unknown to Redis:", err)
		}
	})
}

// TestOneLoadAtATime (invariant 4) checks that a second load cannot begin, and that every begun ticket survives its
// runner's death.
func TestOneLoadAtATime(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", map[string]string{"x": "llm"})
		first := acquire(t, s, want(t, s, "gw", "m1", "h"))
		second := acquire(t, s, want(t, s, "gw", "m2", "h"))
		w := want(t, s, "gw", "x", "h")
		w.Unload = true
		unload := acquire(t, s, w)
		must(t, s.Begin(ctx, "h", g, first.Ticket, state.NPUSeat{}))
		must(t, s.Begin(ctx, "h", g, unload.Ticket, state.NPUSeat{}))
		before := b.dump()
		if err := s.Begin(ctx, "h", g, second.Ticket, state.NPUSeat{}); !errors.Is(err, state.ErrBusy) {
			t.Fatal("a second load during the first:", err)
		}
		equal(t, "state after the refusal", b.dump(), before)

		g = register(t, s, "h", nil) // killed and restarted
		snap, err := s.Snapshot(ctx)
		must(t, err)
		h := snap.Hosts["h"]
		equal(t, "loading", h.Loading, "")
		equal(t, "models", len(h.Models), 0)
		equal(t, "queue", len(h.Queue), 3)
		equal(t, "last in the queue", h.Queue[2].ID, second.Ticket)
		for _, q := range h.Queue {
			equal(t, "state", q.State, "queued")
			must(t, s.Begin(ctx, "h", g, q.ID, state.NPUSeat{}))
			_, err := s.Finish(ctx, "h", g, q.ID, state.Outcome{})
			must(t, err)
		}
		equal(t, "begun", b.content(prefix+"begun:h"), "")
	})
}

// TestEmptiedRedis (fault 4) empties Redis. Runners are told, register what they hold, and tokens still rise.
func TestEmptiedRedis(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", map[string]string{"m": "llm"})
		a := acquire(t, s, want(t, s, "gw", "m2", "h"))
		must(t, s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{}))
		must(t, b.rdb.FlushAll(ctx).Err())
		b.now -= time.Minute.Milliseconds() // and the new one's clock is behind

		snap, err := s.Snapshot(ctx)
		must(t, err)
		equal(t, "epoch", snap.Epoch, "")
		if _, _, err := s.Beat(ctx, "h", g, true, map[string]state.Use{"m": {Open: 1}}); !errors.Is(err, state.ErrUnknownHost) {
			t.Fatal("beat after a flush:", err)
		}
		equal(t, "a beat wrote nothing", b.dump(), "")
		equal(t, "the gateway's ticket", standing(t, s, "gw", a.Ticket).Found, false)
		g2, epoch, err := s.Register(ctx, state.HostInfo{
			Name: "h", Boot: "boot-1", Generation: g, Loading: a.Ticket,
			Models: []state.ModelPut{{ID: "m", Fields: map[string]string{"type": "llm", "state": "loaded", "used_age_ms": "5000"}}},
		})
		must(t, err)
		if g2 <= g {
			t.Fatalf("generation %d after %d", g2, g)
		}
		snap, err = s.Snapshot(ctx)
		must(t, err)
		equal(t, "epoch", snap.Epoch, epoch)
		equal(t, "loading, its ticket being lost", snap.Hosts["h"].Loading, "")
		equal(t, "use time by Redis' clock", snap.Hosts["h"].Models["m"].UsedMS, b.now-5000)
		if _, err := s.Finish(ctx, "h", g2, a.Ticket, state.Outcome{}); !errors.Is(err, state.ErrGone) {
			t.Fatal("finishing a lost ticket:", err)
		}
		equal(t, "asking anew", acquire(t, s, want(t, s, "gw", "m2", "h")).Status, "created")
	})
}

// TestRegisterAgainWhileLoading checks that a load continues under the same ticket if Redis loses the host only for a
// moment.
func TestRegisterAgainWhileLoading(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", nil)
		a := acquire(t, s, want(t, s, "gw", "m", "h"))
		must(t, s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{}))
		g, _, err := s.Register(ctx, state.HostInfo{Name: "h", Boot: "boot-1", Generation: g, Loading: a.Ticket})
		must(t, err)
		equal(t, "loading", b.field("host:h", "loading"), a.Ticket)
		equal(t, "queue", b.content(prefix+"queue:h"), "")
		_, err = s.Finish(ctx, "h", g, a.Ticket, state.Outcome{})
		must(t, err)
		equal(t, "loading", b.field("host:h", "loading"), "")
	})
}

// TestLostHost (fault 8) loses the host of a queued load. Its copies are no longer routes, and the wait leads to a
// wake.
func TestLostHost(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", map[string]string{"m": "llm"})
		begun := acquire(t, s, want(t, s, "gw", "m1", "h"))
		must(t, s.Begin(ctx, "h", g, begun.Ticket, state.NPUSeat{}))
		queued := acquire(t, s, want(t, s, "gw", "m2", "h"))

		b.after(state.LostAfter + time.Second)
		snap, err := s.Snapshot(ctx)
		must(t, err)
		equal(t, "state", snap.Hosts["h"].State, "lost")
		equal(t, "copies", len(snap.Copies("m")), 0)
		equal(t, "a copy on a lost host", acquire(t, s, state.Want{Gateway: "gw", Model: "m"}).Status, "none")
		equal(t, "lease at the first notice", standing(t, s, "gw", queued.Ticket).WakeToken, "")

		// Only Redis was away: the host beats again and nothing happens.
		_, _, err = s.Beat(ctx, "h", g, false, nil)
		must(t, err)
		b.after(state.LostAfter - time.Second)
		equal(t, "lease for a host that beats", standing(t, s, "gw", queued.Ticket).WakeToken, "")
		equal(t, "a copy on a host that beats", acquire(t, s, state.Want{Gateway: "gw", Model: "m"}).Status, "loaded")

		b.after(state.LostAfter)
		equal(t, "lease at the second notice", standing(t, s, "gw", queued.Ticket).WakeToken, "")
		b.after(state.LostAfter + time.Second)
		st, err := s.Renew(ctx, "gw", state.Renewal{Ticket: queued.Ticket}, state.Renewal{Ticket: begun.Ticket})
		must(t, err)
		if st[0].WakeToken == "" {
			t.Fatal("nobody wakes a lost host")
		}
		equal(t, "the begun load", fmt.Sprint(st[1].Record.State, st[1].Position), "queued1")
		equal(t, "the queued load", fmt.Sprint(standing(t, s, "gw", queued.Ticket).Position), "2")
		equal(t, "records", b.content(prefix+"models:h"), "")

		// The runner is alive after all: it is told to register, and continues its load.
		if _, err := s.Finish(ctx, "h", g, begun.Ticket, state.Outcome{}); !errors.Is(err, state.ErrUnknownHost) {
			t.Fatal("finish by a runner considered lost:", err)
		}
		_, _, err = s.Register(ctx, state.HostInfo{Name: "h", Boot: "boot-1", Generation: g, Loading: begun.Ticket})
		must(t, err)
		equal(t, "queue", b.content(prefix+"queue:h"), fmt.Sprintf("list [%s]", queued.Ticket))
		equal(t, "begun load", standing(t, s, "gw", begun.Ticket).Record.State, "loading")
		if err := s.RenewWake(ctx, "h", st[0].WakeToken); !errors.Is(err, state.ErrAwake) {
			t.Fatal("waking a host that came back:", err)
		}
	})
}

// TestLeasesEnd checks that what has ended is removed a minute later, and that late calls do not bring it
// back for good.
func TestLeasesEnd(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", nil)
		w := want(t, s, "gw", "m", "h")
		w.Unattended, w.Operation = true, "op"
		a := acquire(t, s, w)
		_, err := s.Finish(ctx, "h", g, a.Ticket, state.Outcome{})
		must(t, err)
		w.Unattended = false
		acquire(t, s, w) // a late repeat, now as a waiter
		standing(t, s, "gw-2", a.Ticket)
		must(t, s.ReleaseTicket(ctx, "gw-2", a.Ticket, true))
		for _, kind := range []string{"ticket:", "waiters:", "op:"} {
			keys, err := b.rdb.Keys(ctx, prefix+kind+"*").Result()
			must(t, err)
			for _, k := range keys {
				ttl, err := b.rdb.PTTL(ctx, k).Result()
				must(t, err)
				if ttl <= 0 || ttl > time.Minute {
					t.Errorf("%s remains for %v", k, ttl)
				}
			}
		}
	})
}

// TestSharedConstants checks that Lua and Go agree on when a host counts as lost.
func TestSharedConstants(t *testing.T) {
	src, err := os.ReadFile(filepath.Join("lua", "lib", "base.lua"))
	must(t, err)
	m := regexp.MustCompile(`local LOST_MS = (\d+)`).FindSubmatch(src)
	if m == nil {
		t.Fatal("base.lua has no LOST_MS")
	}
	ms, err := strconv.ParseInt(string(m[1]), 10, 64)
	must(t, err)
	equal(t, "LOST_MS", ms, state.LostAfter.Milliseconds())
}
