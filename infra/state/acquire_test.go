package state_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
)

// TestStalePlacementChangesNothing covers every cause of staleness.
func TestStalePlacementChangesNothing(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", map[string]string{"old": "llm"})
		changes := map[string]func(){
			"a model record": func() {
				must(t, s.PutModels(ctx, "h", g, []state.ModelPut{{ID: "x", Fields: map[string]string{"used_age_ms": "0", "type": "llm"}}}))
			},
			"a model gone": func() { must(t, s.DropModel(ctx, "h", g, "x", "", false)) },
			"another load": func() { acquire(t, s, want(t, s, "gw-2", "other", "h")) },
			"a host state": func() { must(t, s.SetHostState(ctx, "h", g, "draining")) },
			"its load elsewhere": func() {
				w := want(t, s, "gw-2", "m", "h2")
				w.OwnTicket = true
				acquire(t, s, w)
			},
			"its model elsewhere": func() { register(t, s, "h3", map[string]string{"m": "llm"}) },
			"a catalog": func() {
				_, err := s.PutCatalog(ctx, "v2", []byte(`{"models":[]}`), nil)
				must(t, err)
			},
			"lost data": func() { must(t, b.rdb.FlushAll(ctx).Err()); register(t, s, "h", nil) },
		}
		for _, name := range []string{"a model record", "a model gone", "another load", "a host state", "its load elsewhere", "its model elsewhere", "a catalog", "lost data"} {
			w := want(t, s, "gw-1", "m", "h")
			w.Anew = true // although it is loaded on h3
			changes[name]()
			before := b.dump()
			_, err := s.Acquire(ctx, w)
			if !errors.Is(err, state.ErrStale) {
				t.Fatalf("placement older than %s: %v", name, err)
			}
			equal(t, "state after "+name, b.dump(), before)
		}
		w := want(t, s, "gw-1", "m", "h")
		register(t, s, "h2", map[string]string{"n": "llm"})
		acquire(t, s, want(t, s, "gw-2", "o", "h2"))
		equal(t, "placed while another host changed", acquire(t, s, w).Status, "created")
	})
}

// TestRevisionNeverReturns checks that a pool that was emptied never reuses a revision.
func TestRevisionNeverReturns(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		register(t, s, "h", nil)
		w := want(t, s, "gw", "m", "h")
		must(t, b.rdb.FlushAll(ctx).Err())
		b.after(time.Second)
		for i := range 5 {
			register(t, s, fmt.Sprint("h", i), nil)
			if _, err := s.Acquire(ctx, w); !errors.Is(err, state.ErrStale) {
				t.Fatal("a placement from before the data loss:", err)
			}
		}
	})
}

// TestTicketNumbersAfterLostData checks that a gateway never gets a ticket number twice, even from a Redis that lost
// its data and whose clock is behind: the gateway could not tell the two tickets apart.
func TestTicketNumbersAfterLostData(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		register(t, s, "h", nil)
		first := acquire(t, s, want(t, s, "gw", "m", "h"))
		must(t, b.rdb.FlushAll(ctx).Err())
		b.after(-time.Second)
		register(t, s, "h", nil)
		second := acquire(t, s, want(t, s, "gw", "other", "h"))
		if second.Ticket <= first.Ticket { // both have the same number of digits
			t.Errorf("ticket %s after ticket %s", second.Ticket, first.Ticket)
		}
	})
}

func TestAcquireVariants(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", map[string]string{"warm": "llm"})

		equal(t, "nothing to attach to", acquire(t, s, state.Want{Gateway: "gw-1", Model: "m"}).Status, "none")

		first := acquire(t, s, want(t, s, "gw-1", "m", "h"))
		equal(t, "power lease of an awake host", first.WakeToken, "")
		equal(t, "stage", fmt.Sprint(first.State, first.Position), "queued1")
		second := acquire(t, s, state.Want{Gateway: "gw-2", Model: "m", Host: "elsewhere", Revision: 1})
		equal(t, "attached, whatever its placement", second.Status+second.Ticket, "attached"+first.Ticket)
		must(t, s.Begin(ctx, "h", g, first.Ticket, state.NPUSeat{}))
		third := acquire(t, s, state.Want{Gateway: "gw-3", Model: "m"})
		equal(t, "attached to a load in progress", fmt.Sprint(third.Status, third.State, third.Position), "attachedloading0")

		w := want(t, s, "gw-1", "m", "h")
		w.OwnTicket, w.Fields = true, map[string]string{"options": `{"ctx_size":1}`, "state": "ready", "kind": "x"}
		own := acquire(t, s, w)
		equal(t, "own ticket", own.Status, "created")
		if own.Ticket == first.Ticket {
			t.Fatal("an exclusive ticket is shared")
		}
		equal(t, "fields cannot rewrite a ticket", b.field("ticket:"+own.Ticket, "state")+b.field("ticket:"+own.Ticket, "kind"), "queuedload")
		equal(t, "shared ticket", b.field("wanted", "m"), first.Ticket)
		equal(t, "options", standing(t, s, "gw-1", own.Ticket).Record.Options, `{"ctx_size":1}`)

		w = want(t, s, "gw-4", "warm", "h")
		equal(t, "loaded", acquire(t, s, w).Status, "loaded")
		w.Anew = true
		refused := acquire(t, s, w)
		equal(t, "refused", refused.Status, "created")
		equal(t, "refused again", acquire(t, s, w).Ticket, refused.Ticket)

		w = want(t, s, "gw-1", "bg", "h")
		w.Unattended = true
		bg := acquire(t, s, w)
		equal(t, "waiters of a background load", b.content(prefix+"waiters:"+bg.Ticket), "")
		must(t, s.ReleaseTicket(ctx, "gw-1", bg.Ticket, false))
		equal(t, "a background load stays", b.field("ticket:"+bg.Ticket, "state"), "queued")
		w = state.Want{Gateway: "gw-2", Model: "bg"}
		equal(t, "waiting for a background load", acquire(t, s, w).Ticket, bg.Ticket)
		equal(t, "dropped though it is waited for", s.DropUnwaited(ctx, "sweep", bg.Ticket), state.ErrGone)
		must(t, s.ReleaseTicket(ctx, "gw-2", bg.Ticket, false))
		equal(t, "a background load stays", b.field("ticket:"+bg.Ticket, "state"), "queued")
	})
}

// TestOperationRepeated checks that repeating a call whose response was lost returns the first ticket and changes
// nothing.
func TestOperationRepeated(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", nil)
		w := want(t, s, "gw-1", "m", "h")
		w.OwnTicket, w.Operation = true, "op-1"
		first := acquire(t, s, w)
		before := b.dump()
		again := acquire(t, s, w)
		equal(t, "ticket", again.Ticket, first.Ticket)
		equal(t, "state after a repetition", b.dump(), before)

		must(t, s.Begin(ctx, "h", g, first.Ticket, state.NPUSeat{}))
		_, err := s.Finish(ctx, "h", g, first.Ticket, state.Outcome{})
		must(t, err)
		must(t, s.SetHostState(ctx, "h", g, "asleep"))
		before = b.dump()
		again = acquire(t, s, w)
		equal(t, "a repetition after the end", again.Ticket+string(again.State)+again.WakeToken, first.Ticket+"ready")
		equal(t, "state after a late repetition", b.dump(), before)
	})
}

// TestReplacedTicket moves the load of a lost host to another. The new ticket is the model's only one and stays a
// background load. Later requests never get the old ticket or, once it has ended, the new one.
func TestReplacedTicket(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		register(t, s, "h", nil)
		near := register(t, s, "near", nil)
		w := want(t, s, "gw-1", "m", "h")
		w.Unattended = true
		old := acquire(t, s, w)
		equal(t, "attached", acquire(t, s, state.Want{Gateway: "gw-2", Model: "m"}).Ticket, old.Ticket)
		b.after(state.LostAfter + time.Second)

		w = want(t, s, "gw-2", "m", "near")
		w.Replaces, w.Operation = old.Ticket, "op-1"
		before := b.dump()
		stale := w
		stale.Revision--
		if _, err := s.Acquire(ctx, stale); !errors.Is(err, state.ErrStale) {
			t.Fatal("a stale placement:", err)
		}
		nowhere := w
		nowhere.Host = ""
		equal(t, "without a host", acquire(t, s, nowhere).Status, "none")
		equal(t, "state after refusals", b.dump(), before)

		moved := acquire(t, s, w)
		equal(t, "moved", moved.Status+moved.Host, "creatednear")
		equal(t, "the old ticket", standing(t, s, "gw-1", old.Ticket).Record.State, "dropped")
		equal(t, "queue of the lost host", b.content(prefix+"queue:h"), "")
		equal(t, "shared ticket", b.field("wanted", "m"), moved.Ticket)
		before = b.dump()
		equal(t, "a repetition", acquire(t, s, w).Ticket, moved.Ticket)
		equal(t, "state after a repetition", b.dump(), before)
		other := want(t, s, "gw-1", "m", "near")
		other.Replaces = old.Ticket
		equal(t, "another that moves", acquire(t, s, other).Ticket, moved.Ticket)
		for _, gw := range []string{"gw-1", "gw-2"} {
			must(t, s.ReleaseTicket(ctx, gw, moved.Ticket, false))
		}
		equal(t, "a background load that moved", standing(t, s, "gw-1", moved.Ticket).Record.State, "queued")

		must(t, s.Begin(ctx, "near", near, moved.Ticket, state.NPUSeat{}))
		_, err := s.Finish(ctx, "near", near, moved.Ticket, state.Outcome{})
		must(t, err)
		other.Revision = want(t, s, "gw-1", "m", "near").Revision
		equal(t, "one that moves too late", acquire(t, s, other).Status, "none")
		next := acquire(t, s, want(t, s, "gw-3", "m", "near"))
		if next.Status != "created" || next.Ticket == moved.Ticket {
			t.Fatalf("a newcomer is sent to %+v, whose load has ended", next)
		}
	})
}

// TestUnloadWakesNothing checks that an unload on a sleeping host is already done.
func TestUnloadWakesNothing(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", map[string]string{"m": "llm"})
		unload := func() state.Acquired {
			w := want(t, s, "gw", "m", "h")
			w.Unload = true
			return acquire(t, s, w)
		}
		queued, begun := unload(), unload()
		if queued.Ticket == begun.Ticket {
			t.Fatal("two unloads are one ticket")
		}
		must(t, s.Begin(ctx, "h", g, begun.Ticket, state.NPUSeat{}))
		must(t, s.SetHostState(ctx, "h", g, "asleep"))
		for _, u := range []state.Acquired{queued, begun} {
			equal(t, "an unload of a host gone to sleep", standing(t, s, "gw", u.Ticket).Record.State, "ready")
		}
		late := unload()
		equal(t, "an unload on a sleeping host", late.Status+string(late.State)+late.WakeToken, "createdready")
		equal(t, "host state", b.field("host:h", "state"), "asleep")
		equal(t, "queue", b.content(prefix+"queue:h"), "")
	})
}

// TestWakeLease checks that one gateway gets the power lease, that it passes on when it expires, and that a failed wake
// fails the waiters.
func TestWakeLease(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		var duties []string
		var ticket string
		for i := range 8 {
			a := acquire(t, s, want(t, s, fmt.Sprint("gw-", i), "m", "h"))
			ticket = a.Ticket
			if a.WakeToken != "" {
				duties = append(duties, a.WakeToken)
			}
		}
		equal(t, "duties", len(duties), 1)
		b.after(state.WakeLease - time.Second)
		must(t, s.RenewWake(ctx, "h", duties[0]))
		b.after(state.WakeLease - time.Second)
		equal(t, "lease while renewed", standing(t, s, "gw-1", ticket).WakeToken, "")
		b.after(state.WakeLease)
		next := standing(t, s, "gw-1", ticket).WakeToken
		if next == "" || next <= duties[0] {
			t.Fatalf("the lease did not pass on with a higher token: %q after %q", next, duties[0])
		}
		equal(t, "lease for a third", standing(t, s, "gw-2", ticket).WakeToken, "")
		if err := s.RenewWake(ctx, "h", duties[0]); !errors.Is(err, state.ErrNotOwner) {
			t.Fatal("renewing after the lease expired:", err)
		}
		before := b.dump()
		if err := s.FailWake(ctx, "h", duties[0], "c", "m"); !errors.Is(err, state.ErrNotOwner) {
			t.Fatal("failing after the lease expired:", err)
		}
		equal(t, "state after a fenced failure", b.dump(), before)

		other := acquire(t, s, want(t, s, "gw-1", "m2", "h"))
		must(t, s.FailWake(ctx, "h", next, "no_capacity", "sold out"))
		for _, id := range []string{ticket, other.Ticket} {
			r := standing(t, s, "gw-1", id).Record
			equal(t, "outcome", string(r.State)+r.Code, "failedno_capacity")
			equal(t, "wake error", r.WakeError, true)
		}
		snap, err := s.Snapshot(ctx)
		must(t, err)
		equal(t, "host", string(snap.Hosts["h"].State)+" "+snap.Hosts["h"].Error, "asleep sold out")
		if acquire(t, s, want(t, s, "gw-3", "m", "h")).WakeToken == "" {
			t.Fatal("a new want after a failed wake got no power lease")
		}

		g := register(t, s, "h", nil)
		if err := s.FailWake(ctx, "h", next, "c", "m"); !errors.Is(err, state.ErrAwake) {
			t.Fatal("failing to wake a host that is awake:", err)
		}
		must(t, s.SetHostState(ctx, "h", g, "draining"))
		if err := s.RenewWake(ctx, "h", next); !errors.Is(err, state.ErrAwake) {
			t.Fatal("waking a host that drains:", err)
		}
	})
}

// TestSleepWithWorkQueued checks that a waiter wakes a host again that goes to sleep, and that a repeated `asleep` does
// not undo that.
func TestSleepWithWorkQueued(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", map[string]string{"old": "llm"})
		a := acquire(t, s, want(t, s, "gw-1", "m", "h"))
		begun := acquire(t, s, want(t, s, "gw-1", "m0", "h"))
		must(t, s.Begin(ctx, "h", g, begun.Ticket, state.NPUSeat{}))
		must(t, s.SetHostState(ctx, "h", g, "asleep"))
		equal(t, "records of a sleeping host", b.content(prefix+"models:h")+b.content(prefix+"lru:h:llm")+b.content(prefix+"model:h:old"), "")
		equal(t, "the begun load heads the queue", b.content(prefix+"queue:h"), fmt.Sprintf("list [%s %s]", begun.Ticket, a.Ticket))
		if err := s.PutModels(ctx, "h", g, []state.ModelPut{{ID: "m", Fields: map[string]string{"used_age_ms": "0", "type": "llm"}}}); !errors.Is(err, state.ErrUnknownHost) {
			t.Fatal("a record on a sleeping host:", err)
		}
		if err := s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{}); !errors.Is(err, state.ErrUnknownHost) {
			t.Fatal("beginning a load on a sleeping host:", err)
		}
		_, _, err := s.Beat(ctx, "h", g, false, nil)
		must(t, err)
		if standing(t, s, "gw-1", a.Ticket).WakeToken == "" {
			t.Fatal("the waiter got no power lease of the host again")
		}
		must(t, s.SetHostState(ctx, "h", g, "asleep"))
		equal(t, "host state", b.field("host:h", "state"), "waking")
		equal(t, "lease for a second", standing(t, s, "gw-2", a.Ticket).WakeToken, "")
		if _, _, err := s.Beat(ctx, "h", g, false, nil); !errors.Is(err, state.ErrUnknownHost) {
			t.Fatal("a live runner is not asked to register when its host is wanted:", err)
		}
		register(t, s, "h", nil)
		equal(t, "queue kept", b.content(prefix+"queue:h"), fmt.Sprintf("list [%s %s]", begun.Ticket, a.Ticket))
	})
}

// TestClaimWake checks that a background load whose gateway died is still carried out, and that a load without waiters
// wakes nothing.
func TestClaimWake(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		abandoned := acquire(t, s, want(t, s, "gw-dead", "m0", "h"))
		b.after(time.Minute)
		token, err := s.ClaimWake(ctx, "gw-1", "h")
		must(t, err)
		equal(t, "lease for nothing", token, "")
		equal(t, "a load without waiters", standing(t, s, "gw-1", abandoned.Ticket).Record.State, "dropped")

		w := want(t, s, "gw-dead", "m", "h")
		w.Unattended = true
		if acquire(t, s, w).WakeToken == "" {
			t.Fatal("no lease, although the one for m0 has expired")
		}
		token, err = s.ClaimWake(ctx, "gw-1", "h")
		must(t, err)
		equal(t, "lease that another holds", token, "")
		b.after(2 * state.WakeLease)
		var tokens []string
		for i := range 4 {
			token, err := s.ClaimWake(ctx, fmt.Sprint("gw-", i), "h")
			must(t, err)
			if token != "" {
				tokens = append(tokens, token)
			}
		}
		equal(t, "duties after the lease", len(tokens), 1)
		register(t, s, "h", nil)
		token, err = s.ClaimWake(ctx, "gw-1", "h")
		must(t, err)
		equal(t, "lease for an awake host", token, "")
	})
}

// TestLargeRecords checks that long queues and large hashes fit the scripts' limits.
func TestLargeRecords(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		fields := map[string]string{"type": "llm", "state": "loaded", "options": strings.Repeat("x", 1_000)}
		for i := range 200 {
			fields[fmt.Sprint("field-", i)] = "\x00\"\\é\n"
		}
		var models []state.ModelPut
		for _, id := range []string{"1", "2", "a:b", "org/x{y}"} {
			models = append(models, state.ModelPut{ID: id, Fields: fields})
		}
		_, _, err := s.Register(ctx, state.HostInfo{Name: "h", Models: models})
		must(t, err)
		w := want(t, s, "gw", "m", "h")
		for i := range 100 {
			w.Model = fmt.Sprint("m", i)
			acquire(t, s, w)
			rev, err := b.rdb.Get(ctx, prefix+"rev").Uint64()
			must(t, err)
			w.Revision = rev
		}
		snap, err := s.Snapshot(ctx)
		must(t, err)
		equal(t, "queue", len(snap.Hosts["h"].Queue), 100)
		for _, m := range models {
			r := snap.Hosts["h"].Models[m.ID]
			if r == nil || r.Fields["field-7"] != "\x00\"\\é\n" || r.UsedMS != b.now {
				t.Fatalf("record of %s came back as %.200v", m.ID, r)
			}
		}
		if !slices.IsSortedFunc(snap.Hosts["h"].Queue, func(a, b state.TicketRecord) int { return strings.Compare(a.ID, b.ID) }) {
			t.Fatal("queue out of order")
		}
	})
}

// A load goes before queued loads of a lower priority, at most eight times, and a request that joins can raise it.
func TestPriorities(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		register(t, s, "h", nil)
		byTicket := map[string]string{}
		load := func(model, priority string) string {
			w := want(t, s, "gw", model, "h")
			w.Priority = priority
			a := acquire(t, s, w)
			byTicket[a.Ticket] = model
			return a.Ticket
		}
		queue := func() string {
			ids, err := b.rdb.LRange(ctx, prefix+"queue:h", 0, -1).Result()
			must(t, err)
			var models []string
			for _, id := range ids {
				models = append(models, byTicket[id])
			}
			return strings.Join(models, " ")
		}
		load("n1", "")
		low := load("l1", "low")
		load("n2", "")
		load("h1", "high")
		load("l2", "low")
		equal(t, "the queue", queue(), "h1 n1 n2 l1 l2")
		equal(t, "how often the low one was passed", b.field("ticket:"+low, "passed"), "2")
		load("l2", "")
		equal(t, "the queue after a raise", queue(), "h1 n1 n2 l2 l1")
		load("l2", "low")
		equal(t, "the queue after a lower one joined", queue(), "h1 n1 n2 l2 l1")
		must(t, s.ReleaseTicket(ctx, "gw", low, false))
		for i := range 10 {
			load(fmt.Sprint("x", i), "high")
		}
		equal(t, "the queue of many", queue(), "h1 x0 x1 x2 x3 x4 x5 x6 n1 n2 x7 l2 x8 x9")
		load("n2", "high") // n1, before it, has been passed eight times
		equal(t, "the queue after a raise that changes nothing", queue(), "h1 x0 x1 x2 x3 x4 x5 x6 n1 n2 x7 l2 x8 x9")
	})
}
