package state_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"reveille/infra/state"
	"reveille/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is one Redis, real or embedded, with the test's own clock.
type bench struct {
	t   *testing.T
	url string
	rdb *redis.Client
	now int64 // ms; moved by the test, read by all stores of the bench
}

const prefix = "rv:{main}:"

// onBoth runs a test with redis-server and with the embedded Redis.
func onBoth(t *testing.T, test func(*bench)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) { test(newBench(t, testenv.Redis(t))) })
	t.Run("miniredis", func(t *testing.T) { test(newBench(t, testenv.MiniRedis(t).Addr())) })
}

func newBench(t *testing.T, addr string) *bench {
	b := &bench{t: t, url: "redis://" + addr, rdb: redis.NewClient(&redis.Options{Addr: addr}), now: 1_700_000_000_000}
	t.Cleanup(func() { _ = b.rdb.Close() })
	return b
}

// store opens a store whose scripts use the bench's clock.
func (b *bench) store() *state.Store {
	return b.open(state.Options{URL: b.url, Now: func() int64 { return b.now }})
}

func (b *bench) open(o state.Options) *state.Store {
	b.t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second // most tests are not about slow machines
	}
	s, err := state.Open(o)
	must(b.t, err)
	b.t.Cleanup(func() { _ = s.Close() })
	return s
}

func (b *bench) after(d time.Duration) { b.now += d.Milliseconds() }

// settled makes the pool one that has had its state for long.
func (b *bench) settled() {
	b.t.Helper()
	must(b.t, b.rdb.Set(ctx, prefix+"epoch", "1", 0).Err())
}

// dump returns every key with its content, in a comparable form.
func (b *bench) dump() string {
	b.t.Helper()
	ctx := context.Background()
	keys, err := b.rdb.Keys(ctx, "*").Result()
	must(b.t, err)
	slices.Sort(keys)
	var out strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&out, "%s = %s\n", k, b.content(k))
	}
	return out.String()
}

func (b *bench) content(key string) string {
	b.t.Helper()
	ctx := context.Background()
	typ, err := b.rdb.Type(ctx, key).Result()
	must(b.t, err)
	var v any
	switch typ {
	case "string":
		v, err = b.rdb.Get(ctx, key).Result()
	case "hash":
		v, err = b.rdb.HGetAll(ctx, key).Result() // fmt prints maps in order
	case "list":
		v, err = b.rdb.LRange(ctx, key, 0, -1).Result()
	case "set":
		var members []string
		members, err = b.rdb.SMembers(ctx, key).Result()
		slices.Sort(members)
		v = members
	case "zset":
		v, err = b.rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
	case "none":
		return ""
	}
	must(b.t, err)
	return fmt.Sprint(typ, " ", v)
}

// field returns a field of a hash, "" if it is missing.
func (b *bench) field(key, field string) string {
	b.t.Helper()
	v, err := b.rdb.HGet(context.Background(), prefix+key, field).Result()
	if err != nil && err != redis.Nil {
		b.t.Fatal(err)
	}
	return v
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// register makes a host ready with loaded models, given as id → type.
func register(t testing.TB, s *state.Store, host string, loaded map[string]string) uint64 {
	t.Helper()
	info := state.HostInfo{Name: host, Boot: "boot-1", Addr: host + ":9000", Devices: "cpu gpu"}
	for _, id := range slices.Sorted(maps.Keys(loaded)) {
		info.Models = append(info.Models, state.ModelPut{ID: id, Fields: map[string]string{"type": loaded[id], "state": "loaded", "used_age_ms": "0"}})
	}
	g, _, err := s.Register(context.Background(), info)
	must(t, err)
	return g
}

// want returns a gateway's load of a model, placed on host by the newest snapshot.
func want(t testing.TB, s *state.Store, gateway, model, host string) state.Want {
	t.Helper()
	snap, err := s.Snapshot(context.Background())
	must(t, err)
	return state.Want{Gateway: gateway, Model: model, Host: host, Revision: snap.RevisionOf(host, model)}
}

func acquire(t testing.TB, s *state.Store, w state.Want) state.Acquired {
	t.Helper()
	a, err := s.Acquire(context.Background(), w)
	must(t, err)
	return a
}

func standing(t testing.TB, s *state.Store, gateway, ticket string) state.TicketStatus {
	t.Helper()
	st, err := s.Renew(context.Background(), gateway, state.Renewal{Ticket: ticket, Waiting: 1})
	must(t, err)
	equal(t, "statuses", len(st), 1)
	return st[0]
}
