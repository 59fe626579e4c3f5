package state_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"reveille/infra/breaker"
	"reveille/infra/state"
	"reveille/testenv"
)

var ctx = context.Background()

// TestEveryScript takes one load and one unload through every operation.
func TestEveryScript(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		empty, err := s.Snapshot(ctx)
		must(t, err)
		equal(t, "hosts of an empty pool", len(empty.Hosts), 0)
		equal(t, "epoch of an empty pool", empty.Epoch, "")

		isNew, err := s.PutCatalog(ctx, "v1", []byte(`{"models":[]}`), map[string]string{"gpu-1": "ec2"})
		must(t, err)
		equal(t, "catalog is new", isNew, true)
		isNew, err = s.PutCatalog(ctx, "v1", []byte(`{"models":[]}`), map[string]string{"gpu-1": "ec2"})
		must(t, err)
		equal(t, "catalog is new again", isNew, false)
		version, catalog, err := s.Catalog(ctx)
		must(t, err)
		equal(t, "catalog", version+string(catalog), `v1{"models":[]}`)

		a := acquire(t, s, want(t, s, "gw-1", "m/a", "gpu-1"))
		equal(t, "status", a.Status, "created")
		equal(t, "position", a.Position, 1)
		if a.WakeToken == "" {
			t.Fatal("the first to want a sleeping host got no power lease")
		}
		must(t, s.RenewWake(ctx, "gpu-1", a.WakeToken))
		equal(t, "host state", b.field("host:gpu-1", "state"), "waking")

		g, epoch, err := s.Register(ctx, state.HostInfo{Name: "gpu-1", Boot: "b1", Addr: "10.0.0.1:9000", Devices: "cpu gpu", Labels: "a,b"})
		must(t, err)
		if epoch == "" || g == 0 {
			t.Fatal("no generation or epoch", g, epoch)
		}
		if err := s.RenewWake(ctx, "gpu-1", a.WakeToken); !errors.Is(err, state.ErrAwake) {
			t.Fatal("wake of a registered host:", err)
		}
		equal(t, "driver kept", b.field("host:gpu-1", "driver"), "ec2")

		revision, _, err := s.Beat(ctx, "gpu-1", g, true, map[string]state.Use{"m/a": {Open: 1}})
		must(t, err)
		must(t, s.Begin(ctx, "gpu-1", g, a.Ticket, state.NPUSeat{}))
		must(t, s.Begin(ctx, "gpu-1", g, a.Ticket, state.NPUSeat{})) // as if its response was lost
		equal(t, "loading", b.field("host:gpu-1", "loading"), a.Ticket)
		must(t, s.PutModels(ctx, "gpu-1", g, []state.ModelPut{{ID: "m/a", Fields: map[string]string{"used_age_ms": "0", "type": "llm", "state": "loading"}}}))
		snap, err := s.Snapshot(ctx)
		must(t, err)
		equal(t, "catalog version", snap.Catalog, "v1")
		equal(t, "revision of the beat", revision < snap.Revision, true)
		host := snap.Hosts["gpu-1"]
		equal(t, "load in progress", host.Loading, a.Ticket)
		equal(t, "head of the queue", host.Queue[0].State, "loading")
		equal(t, "waiters", host.Queue[0].Waiters, 1)
		equal(t, "labels", strings.Join(host.Labels, "+"), "a+b")
		equal(t, "model", host.Models["m/a"].State, "loading")

		must(t, s.PutModels(ctx, "gpu-1", g, []state.ModelPut{{ID: "m/a", Fields: map[string]string{"used_age_ms": "0", "type": "llm", "state": "loaded", "options": `{"ctx_size":8}`}}}))
		waiters, err := s.Finish(ctx, "gpu-1", g, a.Ticket, state.Outcome{Fields: map[string]string{"load_ms": "42", "cold": "1"}})
		must(t, err)
		equal(t, "waiters", strings.Join(waiters, ","), "gw-1")
		if _, err := s.Finish(ctx, "gpu-1", g, a.Ticket, state.Outcome{Failed: true}); !errors.Is(err, state.ErrGone) {
			t.Fatal("second outcome:", err)
		}
		st := standing(t, s, "gw-1", a.Ticket)
		equal(t, "outcome", st.Record.State, "ready")
		equal(t, "load ms", st.Record.LoadMS, 42)
		equal(t, "done", st.Record.Done(), true)
		stats, err := s.Stats(ctx)
		must(t, err)
		equal(t, "cold starts", stats["cold_starts_total"], 1)

		loaded := acquire(t, s, state.Want{Gateway: "gw-2", Model: "m/a"})
		equal(t, "status of a loaded model", loaded.Status+" "+loaded.Host, "loaded gpu-1")
		snap, err = s.Snapshot(ctx)
		must(t, err)
		equal(t, "copies", len(snap.Copies("m/a")), 1)
		equal(t, "options", string(snap.Copies("m/a")[0].Options), `{"ctx_size":8}`)

		w := want(t, s, "gw-1", "m/a", "gpu-1")
		w.Unload = true
		u := acquire(t, s, w)
		equal(t, "unload", u.Status+" "+string(u.State), "created queued")
		must(t, s.Begin(ctx, "gpu-1", g, u.Ticket, state.NPUSeat{}))
		snap, err = s.Snapshot(ctx)
		must(t, err)
		equal(t, "a begun unload is still to be seen", snap.Hosts["gpu-1"].Queue[0].ID, u.Ticket)
		must(t, s.DropModel(ctx, "gpu-1", g, "m/a", "unload", true))
		_, err = s.Finish(ctx, "gpu-1", g, u.Ticket, state.Outcome{})
		must(t, err)
		stats, err = s.Stats(ctx)
		must(t, err)
		equal(t, "evictions", stats["evictions_total"], 1)

		must(t, s.SetHostState(ctx, "gpu-1", g, "draining"))
		must(t, s.SetHostState(ctx, "gpu-1", g, "ready"))
		must(t, s.SetHostState(ctx, "gpu-1", g, "asleep"))
		equal(t, "host state", b.field("host:gpu-1", "state"), "asleep")
		token, err := s.ClaimWake(ctx, "gw-3", "gpu-1")
		must(t, err)
		equal(t, "claim of a host that nobody wants", token, "")

		a = acquire(t, s, want(t, s, "gw-1", "m/b", "gpu-1"))
		must(t, s.FailWake(ctx, "gpu-1", a.WakeToken, "no_capacity", "none left"))
		st = standing(t, s, "gw-1", a.Ticket)
		equal(t, "outcome of a failed wake", string(st.Record.State)+" "+st.Record.Code+" "+st.Record.Message, "failed no_capacity none left")
		equal(t, "wake error", st.Record.WakeError, true)
		if err := s.FailWake(ctx, "gpu-1", a.WakeToken, "x", "y"); !errors.Is(err, state.ErrNotOwner) {
			t.Fatal("failing twice:", err)
		}
		none, err := s.Renew(ctx, "gw-1")
		must(t, err)
		equal(t, "statuses of nothing", len(none), 0)
		equal(t, "standing of a ticket that never was", standing(t, s, "gw-1", "1").Found, false)
		must(t, s.ReleaseTicket(ctx, "gw-1", "1", false))
		equal(t, "left over", b.content(prefix+"wanted"), "")
		equal(t, "left over", b.content(prefix+"queue:gpu-1"), "")
		equal(t, "left over", b.content(prefix+"begun:gpu-1"), "")
	})
}

// A pool of another format is left as it is, and the error says what to do. A new pool, or one from before formats had
// numbers, gets this program's.
func TestFormat(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s, key := b.t, b.store(), prefix+"format"
		register(t, s, "h", nil)
		ours := b.rdb.Get(ctx, key).Val()
		must(t, b.rdb.Set(ctx, key, "old", 0).Err())
		before := b.dump()
		_, put := s.PutCatalog(ctx, "v", []byte("{}"), nil)
		_, _, again := s.Register(ctx, state.HostInfo{Name: "h2"})
		_, read := s.Snapshot(ctx)
		for what, err := range map[string]error{"a gateway": put, "a runner": again, "a warmer": read, "the check": s.CheckFormat(ctx)} {
			if !errors.Is(err, state.ErrUnavailable) || errors.Is(err, state.ErrCorrupt) ||
				!strings.Contains(err.Error(), key+" is old, and this program speaks format "+ours) || !strings.Contains(err.Error(), "end them all") {
				t.Errorf("%s: %v", what, err)
			}
		}
		for range breaker.Failures {
			_, _ = s.All(ctx, state.Aliases) // a plain command, which does not check the format
			_, _ = s.Snapshot(ctx)
		}
		equal(t, "available in spite of the format", s.IsAvailable(), false)
		equal(t, "state after refusals", b.dump(), before)
		must(t, b.rdb.Del(ctx, key).Err())
		s = b.store()
		must(t, s.CheckFormat(ctx))
		_, err := s.PutCatalog(ctx, "v", []byte("{}"), nil)
		must(t, err)
		equal(t, "format", b.rdb.Get(ctx, key).Val(), ours)
	})
}

// Models that are gone do not stay in `revs` for ever, and a decision from before they were forgotten is stale.
func TestRevisionsAreBounded(t *testing.T) {
	b := newBench(t, testenv.Redis(t))
	s := b.store()
	g := register(t, s, "h", nil)
	for i := range 10_001 {
		must(t, b.rdb.HSet(ctx, prefix+"revs", fmt.Sprint("m:gone", i), 1).Err())
	}
	old := want(t, s, "gw", "m", "h")
	must(t, s.PutModels(ctx, "h", g, []state.ModelPut{{ID: "other", Fields: map[string]string{"type": "llm"}}}))
	equal(t, "revisions", b.rdb.HLen(ctx, prefix+"revs").Val(), 1)
	if _, err := s.Acquire(ctx, old); !errors.Is(err, state.ErrStale) {
		t.Errorf("a decision from before: %v", err)
	}
	acquire(t, s, want(t, s, "gw", "m", "h"))
}

func TestSettings(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		must(t, s.Set(ctx, state.Pins, "m", "1"))
		v, err := s.Get(ctx, state.Pins, "m")
		must(t, err)
		equal(t, "value", v, "1")
		must(t, s.Set(ctx, state.Pins, "m", ""))
		v, err = s.Get(ctx, state.Pins, "m")
		must(t, err)
		equal(t, "value taken away", v, "")
		all, err := s.All(ctx, state.Pins)
		must(t, err)
		equal(t, "entries", len(all), 0)
	})
}

// TestScriptsAreReloaded checks that a Redis that lost the scripts gets them again (NOSCRIPT).
func TestScriptsAreReloaded(t *testing.T) {
	onBoth(t, func(b *bench) {
		s := b.store()
		for range 2 {
			_, err := s.Snapshot(ctx)
			must(b.t, err)
			must(b.t, b.rdb.ScriptFlush(ctx).Err())
		}
	})
}

// TestShebang checks that redis-server gets scripts that it can refuse before their first effect, and the embedded
// Redis plain ones.
func TestShebang(t *testing.T) {
	s := newBench(t, testenv.Redis(t)).store()
	_, err := s.Snapshot(ctx)
	must(t, err)
	equal(t, "plain on redis-server", s.Plain(), false)
	s = newBench(t, testenv.MiniRedis(t).Addr()).store()
	_, err = s.Snapshot(ctx)
	must(t, err)
	equal(t, "plain on miniredis", s.Plain(), true)
	for name, src := range state.Sources() {
		_, body, _ := strings.Cut(strings.TrimPrefix(src, "#!lua"), "\n")
		if !strings.HasPrefix(src, "#!lua") || !strings.HasPrefix(body, "-- "+name+": ") || !strings.Contains(src, "\n-- Returns ") || !strings.Contains(src, "\n-- Invariant: ") {
			t.Errorf("%s.lua: the header must say #!lua, what it does, what it returns and its invariant", name)
		}
	}
}

// TestOutOfMemoryHasNoEffect checks that a full Redis refuses scripts before their first write.
func TestOutOfMemoryHasNoEffect(t *testing.T) {
	b := newBench(t, testenv.Redis(t))
	s := b.store()
	g := register(t, s, "h", nil)
	w := want(t, s, "gw", "m", "h")
	before := b.dump()
	must(t, b.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	if _, err := s.Acquire(ctx, w); !errors.Is(err, state.ErrUnavailable) {
		t.Fatal("acquire:", err)
	}
	if err := s.PutModels(ctx, "h", g, []state.ModelPut{{ID: "m", Fields: map[string]string{"used_age_ms": "0", "type": "llm"}}}); !errors.Is(err, state.ErrUnavailable) {
		t.Fatal("put:", err)
	}
	must(t, b.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	equal(t, "state after refusals", b.dump(), before)
	equal(t, "status once there is room", acquire(t, s, w).Status, "created")
}

// TestReadOnlyReplica checks that a demoted primary refuses without effect.
func TestReadOnlyReplica(t *testing.T) {
	b := newBench(t, testenv.Redis(t))
	s := b.store()
	register(t, s, "h", nil)
	w := want(t, s, "gw", "m", "h")
	before := b.dump()
	must(t, b.rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err())
	if _, err := s.Acquire(ctx, w); !errors.Is(err, state.ErrUnavailable) {
		t.Fatal("acquire on a replica:", err)
	}
	must(t, b.rdb.ReplicaOf(ctx, "NO", "ONE").Err())
	equal(t, "state after the refusal", b.dump(), before)
	equal(t, "status once promoted", acquire(t, s, w).Status, "created")
}

// TestClock checks that scripts use Redis' time without Options.Now.
func TestClock(t *testing.T) {
	onBoth(t, func(b *bench) {
		t := b.t
		s := b.open(state.Options{URL: b.url})
		before, err := b.rdb.Time(ctx).Result()
		must(t, err)
		snap, err := s.Snapshot(ctx)
		must(t, err)
		after, err := b.rdb.Time(ctx).Result()
		must(t, err)
		if snap.NowMS < before.UnixMilli() || snap.NowMS > after.UnixMilli() {
			t.Fatalf("now is %d, Redis' clock says %d to %d", snap.NowMS, before.UnixMilli(), after.UnixMilli())
		}
		snap, err = b.store().Snapshot(ctx)
		must(t, err)
		equal(t, "a clock of our own", snap.NowMS, b.now)
		b.after(time.Hour)
	})
}

// TestPoolsShareARedis checks that two pools do not see each other, and that all keys of a pool carry its hash tag.
func TestPoolsShareARedis(t *testing.T) {
	onBoth(t, func(b *bench) {
		t := b.t
		tts, main := b.open(state.Options{URL: b.url, Pool: "tts"}), b.store()
		register(t, tts, "h", map[string]string{"kokoro": "tts"})
		snap, err := main.Snapshot(ctx)
		must(t, err)
		equal(t, "hosts of the other pool", len(snap.Hosts), 0)
		for _, line := range strings.Split(strings.TrimSpace(b.dump()), "\n") {
			if !strings.HasPrefix(line, "rv:{tts}:") {
				t.Error("a key outside its pool's hash tag:", line)
			}
		}
	})
	for _, pool := range []string{"a b", "a}", "{", "a:b"} {
		if _, err := state.Open(state.Options{URL: "redis://localhost", Pool: pool}); err == nil {
			t.Errorf("pool name %q was accepted", pool)
		}
	}
}
