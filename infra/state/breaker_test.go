package state_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// TestStalledRedis (faults 1 and 2) checks that a Redis that does not respond costs timeouts until the breaker opens,
// and then nothing. It is probed, and used as soon as it responds. There is one log line per change.
func TestStalledRedis(t *testing.T) {
	t.Parallel()
	relay := testenv.NewFlaky(t, testenv.Redis(t))
	log := &kit.Buffer{}
	s, err := state.Open(state.Options{URL: "redis://" + relay.Addr, Log: slog.New(slog.NewTextHandler(log, nil))})
	must(t, err)
	defer s.Close()
	kit.Eventually(t, "warm", func() bool { return s.Ping(ctx) == nil })
	lines := func() int { return strings.Count(log.String(), "\n") }
	changes := lines() // on a slow machine it may already have opened

	relay.Pause()
	for i := range 5 {
		start := time.Now()
		if _, err := s.Snapshot(ctx); !errors.Is(err, state.ErrUnavailable) {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Fatalf("call %d took %v", i, took)
		}
	}
	equal(t, "up", s.IsAvailable(), false)
	start, calls := time.Now(), 2000
	for range calls {
		if err := s.Ping(ctx); !errors.Is(err, state.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Fatalf("%d calls on an open breaker took %v", calls, took)
	}
	equal(t, "log lines", lines(), changes+1)
	relay.Resume()
	kit.Eventually(t, "back", func() bool { return s.Ping(ctx) == nil })
	equal(t, "up", s.IsAvailable(), true)
	equal(t, "log lines", lines(), changes+2)
}

// A Redis that is full, or whose disk fails, is read as ever, and no write is lost without an error.
func TestFullRedis(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Redis(t))
	generation := register(t, b.store(), "h", nil)
	now := time.Now().UnixMilli()
	for _, fault := range []string{"full", "the disk fails"} {
		log, want := &kit.Buffer{}, "cannot write to disk"
		s := b.open(state.Options{URL: b.url, Now: func() int64 { return now }, Log: slog.New(slog.NewTextHandler(log, nil))})
		switch fault {
		case "full":
			want = "Redis is full"
			must(t, b.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		default:
			must(t, b.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
			must(t, b.rdb.ConfigSet(ctx, "save", "3600 1").Err())
			must(t, os.RemoveAll(b.rdb.ConfigGet(ctx, "dir").Val()["dir"]))
			must(t, b.rdb.BgSave(ctx).Err())
			kit.Eventually(t, "a failed save", func() bool {
				return strings.Contains(b.rdb.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:err")
			})
		}
		if snap, err := s.Snapshot(ctx); err != nil || snap.Hosts["h"] == nil {
			t.Errorf("%s: a snapshot: %v", fault, err)
		}
		now += time.Minute.Milliseconds()
		if _, _, err := s.Beat(ctx, "h", generation, true, nil); (err == nil) != (fault == "full") {
			t.Errorf("%s: a heartbeat: %v", fault, err)
		}
		if snap, err := s.Snapshot(ctx); err != nil || snap.Hosts["h"].State != policy.Ready {
			t.Errorf("%s: a snapshot after a minute: %v", fault, err)
		}
		for range 5 {
			if err := s.Set(ctx, state.Aliases, "a", "b"); !errors.Is(err, state.ErrUnavailable) || errors.Is(err, state.ErrCorrupt) {
				t.Errorf("%s: a setting: %v", fault, err)
			}
		}
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s: the log says %s", fault, log)
		}
	}
}

// A Redis that is set up wrong gets its own message, which does not say to delete data.
func TestRedisSetUpWrong(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Redis(t))
	must(t, b.rdb.ConfigSet(ctx, "requirepass", "secret").Err())
	addr := strings.TrimPrefix(b.url, "redis://")
	must(t, b.rdb.Do(ctx, "ACL", "SETUSER", "reader", "on", ">x", "~*", "&*", "+@all", "-hgetall", "-hset").Err())
	for url, want := range map[string]string{
		"redis://reader:x@" + addr: "may not run a command", b.url: "requires a password", "redis://:wrong@" + addr: "rejects the user", "redis://:secret@" + addr + "/77": "no database",
		"redis://:secret@" + addr + "?cluster=true": "not a Cluster",
	} {
		log := &kit.Buffer{}
		s := b.open(state.Options{URL: url, Log: slog.New(slog.NewTextHandler(log, nil))})
		if _, err := s.Snapshot(ctx); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, state.ErrCorrupt) {
			t.Errorf("%s: %v", url, err)
		}
		if strings.Contains(log.String(), "delete") {
			t.Errorf("%s: the log says %s", url, log)
		}
	}
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	b := state.NewBreaker(slog.New(slog.NewTextHandler(io.Discard, nil)))
	lost := errors.New("connection refused")
	for range 4 {
		b.Record(lost)
	}
	b.Record(redis.Nil) // a response resets the four failures in a row
	for range 4 {
		if err := b.Record(lost); !errors.Is(err, state.ErrUnavailable) || !errors.Is(err, lost) {
			t.Fatal(err)
		}
	}
	equal(t, "allowed after four", b.Allow(), true)
	b.Record(lost)
	equal(t, "allowed after five", b.Allow(), false)
	b.Record(nil)
	equal(t, "allowed after a response", b.Allow(), true)
}

// TestCallersEndIsNotRedisFault checks that calls whose own context ends do not open the breaker.
func TestCallersEndIsNotRedisFault(t *testing.T) {
	relay := testenv.NewFlaky(t, testenv.Redis(t))
	s, err := state.Open(state.Options{URL: "redis://" + relay.Addr, Timeout: 10 * time.Second})
	must(t, err)
	defer s.Close()
	must(t, s.Ping(ctx))
	relay.Pause()
	for range 10 {
		short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		if err := s.Ping(short); !errors.Is(err, state.ErrUnavailable) {
			t.Error(err)
		}
		cancel()
	}
	equal(t, "up", s.IsAvailable(), true)
}
