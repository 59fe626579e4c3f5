package state_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// TestTouch checks that Redis' clock decides, that LRU places never move back, and that what is gone stays gone.
func TestTouch(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		g := register(t, s, "h", map[string]string{"a": "llm", "b": "llm"})
		b.after(time.Minute)
		touch := func(models ...string) {
			toucher := state.NewUsageReporter(s)
			for _, m := range models {
				toucher.Touch("h", m)
				toucher.Touch("h", m)
			}
			toucher.Touch("elsewhere", "x")
			must(t, toucher.Flush(ctx))
		}
		score := func(m string) int64 {
			v, err := b.rdb.ZScore(ctx, prefix+"lru:h:llm", m).Result()
			must(t, err)
			return int64(v)
		}
		touch("a")
		if used := score("a"); used > b.now || used < b.now-10_000 {
			t.Fatalf("used at %d, the clock says %d", used, b.now)
		}
		equal(t, "the other", score("b"), b.now-time.Minute.Milliseconds())
		if snap, _ := s.Snapshot(ctx); snap.Hosts["h"].ActiveMS != score("a") || snap.Hosts["h"].Models["a"].UsedMS != score("a") {
			t.Fatal("records disagree with the LRU place")
		}
		used := score("a")
		b.now -= time.Hour.Milliseconds()
		touch("a", "b", "c")
		must(t, s.PutModels(ctx, "h", g, []state.ModelPut{{ID: "a", Fields: map[string]string{"used_age_ms": "3600000", "type": "llm"}}}, ""))
		b.now += time.Hour.Milliseconds()
		equal(t, "use time after older uses", score("a"), used)
		equal(t, "the other after older uses", score("b"), b.now-time.Minute.Milliseconds())
		equal(t, "a record brought to life", b.content(prefix+"model:h:c")+b.content(prefix+"host:elsewhere"), "")

		must(t, s.PutModels(ctx, "h", g, []state.ModelPut{{ID: "a", Fields: map[string]string{"type": "embedding"}}}, ""))
		left, err := b.rdb.ZRange(ctx, prefix+"lru:h:llm", 0, -1).Result()
		must(t, err)
		equal(t, "LRU of its former type", strings.Join(left, ","), "b")
	})
}

// TestUseIsOneOperation checks what a busy gateway costs Redis: one script for all uses and answers since the last.
func TestUseIsOneOperation(t *testing.T) {
	b := newBench(t, testenv.Redis(t))
	s := b.patient()
	register(t, s, "h", map[string]string{"m": "llm"})
	toucher := state.NewUsageReporter(s)
	commands := func() map[string]string {
		info, err := b.rdb.InfoMap(ctx, "commandstats").Result()
		must(t, err)
		return info["Commandstats"]
	}
	must(t, b.rdb.ConfigResetStat(ctx).Err())
	for range 1000 {
		toucher.Touch("h", "m")
		toucher.Answered(state.Answer{Host: "h", Model: "m", Reported: true, Input: 1, Output: 1, PerSecond: 1})
	}
	must(t, toucher.Flush(ctx))
	must(t, toucher.Flush(ctx))
	scripts, inner := 0, 0
	for name, stat := range commands() {
		calls, _, _ := strings.Cut(strings.TrimPrefix(stat, "calls="), ",")
		n, err := strconv.Atoi(calls)
		must(t, err)
		switch {
		case name == "cmdstat_evalsha":
			scripts += n
		case !strings.HasPrefix(name, "cmdstat_config"):
			inner += n
		}
	}
	equal(t, "scripts", scripts, 1)
	if inner > 15 {
		t.Errorf("%d commands of a script, want 15 at most: %v", inner, commands())
	}
}

// TestUsageReporterKeepsWhatFailed checks that nothing is lost while Redis is away, and that a batch whose answer was
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
		toucher.Answered(state.Answer{Host: "h", Model: "m", Reported: true, Output: output, PerSecond: perSecond})
	}
	answered(1, 2.5)
	answered(0, math.NaN())
	answered(0, math.Inf(1))
	toucher.Count("nonsense", math.NaN())
	toucher.Answered(state.Answer{Host: "h", Model: "m"})
	must(t, toucher.Flush(ctx))
	answered(0, 0.5)
	toucher.Touch("h", "m")

	relay.Pause() // the request gets through when the pause ends; the answer comes too late
	toucher.Touch("h", "m")
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
	equal(t, "answers", stats["request_count_total"], 7)
	equal(t, "nonsense", stats["nonsense"], 0)
	equal(t, "tokens", stats["output_tokens_total"], 7)
	equal(t, "the latest answer's tokens", stats["output_tokens"], 4)
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
	toucher.Answered(state.Answer{})
	kit.Eventually(t, "sent", func() bool { return count() == 1 })
	for range 100 {
		wg.Go(func() { toucher.Answered(state.Answer{}) })
	}
	toucher.Answered(state.Answer{})
	kit.Eventually(t, "sent again", func() bool { return count() == 102 })
	toucher.Answered(state.Answer{})
	stop()
	wg.Wait()
	equal(t, "after the end", count(), 103)
}
