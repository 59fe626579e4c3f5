package state_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// Redis' clock decides about use times, LRU places never move back by themselves, what is gone stays gone, and a place
// that somebody changes is what runners and readers see.
func TestUsesAreReported(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", map[string]string{"a": "llm", "b": "llm"})
		b.after(time.Minute)
		beat := func(age time.Duration, models ...string) map[string]time.Time {
			t.Helper()
			uses := map[string]state.Use{}
			for _, m := range models {
				uses[m] = state.Use{Age: age}
			}
			_, used, err := s.Beat(ctx, "h", g, true, uses)
			must(t, err)
			return used
		}
		place := func(m string) int64 {
			t.Helper()
			v, err := b.rdb.ZScore(ctx, prefix+"lru:h:llm", m).Result()
			must(t, err)
			snap, err := s.Snapshot(ctx)
			must(t, err)
			equal(t, "in the snapshot", snap.Hosts["h"].Models[m].UsedMS, int64(v))
			return int64(v)
		}
		used := beat(time.Second, "a", "c")
		equal(t, "used", place("a"), b.now-1000)
		equal(t, "the other", place("b"), b.now-60_000)
		if age := time.Since(used["a"]); age < time.Second || age > 20*time.Second {
			t.Errorf("used %v ago", age)
		}
		equal(t, "a record brought to life", b.content(prefix+"model:h:c"), "")
		beat(time.Hour, "a")
		must(t, s.PutModels(ctx, "h", g, []state.ModelPut{{ID: "a", Fields: map[string]string{"used_age_ms": "3600000", "type": "llm"}}}))
		equal(t, "after older uses", place("a"), b.now-1000)
		must(t, b.rdb.ZAdd(ctx, prefix+"lru:h:llm", redis.Z{Score: 17, Member: "a"}).Err())
		used = beat(-1, "a", "b")
		equal(t, "changed by hand", place("a"), 17)
		if !used["a"].Before(used["b"]) {
			t.Error("the runner sees", used)
		}
		must(t, s.PutModels(ctx, "h", g, []state.ModelPut{{ID: "a", Fields: map[string]string{"type": "embedding"}}}))
		left, err := b.rdb.ZRange(ctx, prefix+"lru:h:llm", 0, -1).Result()
		must(t, err)
		equal(t, "LRU of its former type", strings.Join(left, ","), "b")
	})
}

// The NPU is one lock: refused while others have it, passed from a model that is stopped to the load, and released by
// whatever ends its holder.
func TestNPULock(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", nil)
		lock := func(want string) {
			t.Helper()
			v, _ := b.rdb.Get(ctx, prefix+"npu:h").Result()
			equal(t, "npu:h", v, want)
		}
		put := func(model, typ string) {
			t.Helper()
			must(t, s.PutModels(ctx, "h", g, []state.ModelPut{{ID: model, Fields: map[string]string{"type": typ, "device": "npu", "state": "loaded"}}}))
		}
		one := state.NPUSeat{Seats: 1}
		begin := func(model string, seat state.NPUSeat) (string, error) {
			t.Helper()
			ticket := acquire(t, s, want(t, s, "gw", model, "h")).Ticket
			return ticket, s.Begin(ctx, "h", g, ticket, seat)
		}
		finish := func(ticket string, failed bool) {
			t.Helper()
			_, err := s.Finish(ctx, "h", g, ticket, state.Outcome{Failed: failed})
			must(t, err)
		}
		a, err := begin("a", one)
		must(t, err)
		lock("a")
		finish(a, true)
		lock("")
		a, err = begin("a", one)
		must(t, err)
		put("a", "llm")
		finish(a, false)
		lock("a")
		bTicket, err := begin("b", one)
		if !errors.Is(err, state.ErrNPUHeld) {
			t.Fatal("while a has it:", err)
		}
		lock("a")
		must(t, s.Begin(ctx, "h", g, bTicket, state.NPUSeat{Seats: 1, Leaving: []string{"a"}}))
		lock("a,b")
		must(t, s.DropModel(ctx, "h", g, "a", "evicted", true))
		lock("b")
		put("b", "llm")
		finish(bTicket, false)
		c, err := begin("c", state.NPUSeat{Seats: 1, Type: "audio"})
		must(t, err)
		lock("b,c")
		put("c", "audio")
		finish(c, false)
		d, err := begin("d", state.NPUSeat{Seats: 1, Type: "audio"})
		if !errors.Is(err, state.ErrNPUHeld) {
			t.Fatal("the seat for audio:", err)
		}
		must(t, s.ReleaseTicket(ctx, "gw", d, false))
		must(t, s.DropModel(ctx, "h", g, "b", "", false))
		must(t, b.rdb.Set(ctx, prefix+"npu:h", "c,stranger", 0).Err())
		if _, err = begin("e", state.NPUSeat{Seats: 2}); !errors.Is(err, state.ErrNPUHeld) {
			t.Fatal("held by what the host does not have:", err)
		}
		g = register(t, s, "h", nil)
		lock("")
	})
}

// TestUsageIsOneOperation checks what a busy gateway costs Redis: one script for all responses since the last.
func TestUsageIsOneOperation(t *testing.T) {
	b := newBench(t, testenv.Redis(t))
	s := b.patient()
	register(t, s, "h", map[string]string{"m": "llm"})
	usage := state.NewUsageReporter(s)
	must(t, b.rdb.ConfigResetStat(ctx).Err())
	for range 1000 {
		usage.CountResponse(state.ResponseUsage{Reported: true, Input: 1, Output: 1, PerSecond: 1})
	}
	must(t, usage.Flush(ctx))
	must(t, usage.Flush(ctx))
	info, err := b.rdb.InfoMap(ctx, "commandstats").Result()
	must(t, err)
	if n := info["Commandstats"]["cmdstat_evalsha"]; !strings.HasPrefix(n, "calls=1,") {
		t.Errorf("scripts: %s", n)
	}
}

// What gateways have spent of a key's budget is one sum, and gateways know how many they are.
func TestGatewaysShare(t *testing.T) {
	onBoth(t, func(b *bench) {
		t := b.t
		first, second := state.NewUsageReporter(b.store()), state.NewUsageReporter(b.store())
		equal(t, "alone", first.Gateways(), 1)
		first.Share("k")
		first.Spend("k", 100)
		equal(t, "not sent yet", first.Spent("k"), 100)
		must(t, first.Flush(ctx))
		equal(t, "sent", first.Spent("k"), 100)
		second.Share("k")
		second.Spend("k", 11)
		must(t, second.Flush(ctx))
		equal(t, "with the other's", second.Spent("k"), 111)
		equal(t, "gateways", second.Gateways(), 2)
		first.Count("requests", 1)
		must(t, first.Flush(ctx))
		equal(t, "known later", first.Spent("k"), 111)
		b.after(11 * time.Second)
		first.Count("requests", 1)
		must(t, first.Flush(ctx))
		equal(t, "one is silent", first.Gateways(), 1)
	})
}

// TestUsageReporterKeepsWhatFailed checks that nothing is lost while Redis is away, and that a batch whose response was
// lost counts once.
func TestUsageReporterKeepsWhatFailed(t *testing.T) {
	b := newBench(t, testenv.Redis(t))
	direct := b.patient()
	register(t, direct, "h", map[string]string{"m": "llm"})
	relay := testenv.NewFlaky(t, b.rdb.Options().Addr)
	s := b.open(state.Options{URL: "redis://" + relay.Addr, Timeout: 200 * time.Millisecond})
	must(t, s.Ping(ctx))
	toucher := state.NewUsageReporter(s)
	answered := func(output int64, perSecond float64) {
		toucher.CountResponse(state.ResponseUsage{Reported: true, Output: output, PerSecond: perSecond})
	}
	answered(1, 2.5)
	answered(0, math.NaN())
	answered(0, math.Inf(1))
	toucher.Count("nonsense", math.NaN())
	toucher.CountResponse(state.ResponseUsage{})
	must(t, toucher.Flush(ctx))
	answered(0, 0.5)

	relay.Pause() // the request gets through when the pause ends; the response comes too late
	answered(2, math.NaN())
	for range 3 {
		if err := toucher.Flush(ctx); !errors.Is(err, state.ErrUnavailable) {
			t.Fatal("flush to a stalled Redis:", err)
		}
	}
	answered(4, math.NaN())
	relay.Resume()
	kit.Eventually(t, "sent", func() bool { return toucher.Flush(ctx) == nil })
	stats, err := direct.Stats(ctx)
	must(t, err)
	equal(t, "responses", stats["request_count_total"], 7)
	equal(t, "nonsense", stats["nonsense"], 0)
	equal(t, "tokens", stats["output_tokens_total"], 7)
	equal(t, "the latest response's tokens", stats["output_tokens"], 4)
	equal(t, "the latest rate", stats["tokens_per_second"], 0.5)
}

// TestUsageReporterRun checks that Run sends periodically, and once more at its end.
func TestUsageReporterRun(t *testing.T) {
	b := newBench(t, testenv.MiniRedis(t).Addr())
	s := b.patient()
	toucher := state.NewUsageReporter(s)
	live, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { toucher.Run(live) })
	count := func() float64 {
		stats, err := s.Stats(ctx)
		must(t, err)
		return stats["request_count_total"]
	}
	toucher.CountResponse(state.ResponseUsage{})
	kit.Eventually(t, "sent", func() bool { return count() == 1 })
	for range 100 {
		wg.Go(func() { toucher.CountResponse(state.ResponseUsage{}) })
	}
	toucher.CountResponse(state.ResponseUsage{})
	kit.Eventually(t, "sent again", func() bool { return count() == 102 })
	toucher.CountResponse(state.ResponseUsage{})
	stop()
	wg.Wait()
	equal(t, "after the end", count(), 103)
}
