package state_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// oneNode returns a Cluster of one node without TLS, which starts at once.
func oneNode(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, testenv.StartRedis(t, "--cluster-enabled", "yes").Addr)
	must(t, b.rdb.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	kit.Eventually(t, "cluster is up", func() bool {
		return b.rdb.Set(ctx, "probe", "1", 0).Err() == nil && b.rdb.Del(ctx, "probe").Err() == nil
	})
	b.url += "?cluster=true"
	return b
}

// TestCluster checks that a Cluster accepts scripts that name only the prefix of their keys, since all keys share the
// pool's slot.
func TestCluster(t *testing.T) {
	b := oneNode(t)
	s := b.open(state.Options{URL: b.url, Pool: "main", Now: func() int64 { return b.now }})
	g := register(t, s, "h", map[string]string{"old": "llm"})
	a := acquire(t, s, want(t, s, "gw", "m", "h"))
	must(t, s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{}))
	_, err := s.Finish(ctx, "h", g, a.Ticket, state.Outcome{})
	must(t, err)
	must(t, s.Set(ctx, state.Pins, "m", "1"))
	m := runMirror(t, s, nil)
	kit.Eventually(t, "host in the mirror", func() bool { return m.Snapshot().Hosts["h"] != nil })
	slot, err := b.rdb.ClusterKeySlot(ctx, prefix).Result()
	must(t, err)
	keys, err := b.rdb.Keys(ctx, "*").Result()
	must(t, err)
	for _, k := range keys {
		at, err := b.rdb.ClusterKeySlot(ctx, k).Result()
		must(t, err)
		equal(t, "slot of "+k, at, slot)
	}
	stats, err := b.rdb.Info(ctx, "commandstats").Result()
	must(t, err)
	if strings.Contains(stats, "cmdstat_command:") {
		t.Error("the client fetched the table of all commands")
	}
}

// TestClusterMovesAPool moves a pool's slot between three nodes with TLS, while a store and a listener stay connected.
// Scripts, transactions and events must continue at the new owner.
func TestClusterMovesAPool(t *testing.T) {
	c := testenv.StartRedisCluster(t)
	all := c.Client(t)
	open := func(url string) *state.Store {
		s, err := state.Open(state.Options{URL: url, Timeout: 10 * time.Second})
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	// The certificate is not verified here: this process reads its root certificates only once, perhaps before this
	// test. The programs' own test trusts the authority.
	s, other := open(c.EndpointURL()+"&skip_verify=true"), open(c.URL()+"?skip_verify=true")
	events := make(chan state.Event, 1000)
	m := runMirror(t, other, func(e state.Event) { events <- e })
	heard := func(kind, name string) {
		t.Helper()
		for limit := time.After(15 * time.Second); ; {
			select {
			case e := <-events:
				if e.Kind == kind && (e.Model == name || e.Host == name) {
					return
				}
			case <-limit:
				t.Fatalf("no event %s of %s", kind, name)
			}
		}
	}
	kit.Eventually(t, "the listener listens", func() bool { return !m.Snapshot().Taken.IsZero() })
	heard("sync", "")

	g := register(t, s, "h", nil)
	heard("host", "h")
	from, to := move(t, c, all, prefix)
	if from == to {
		t.Fatal("the slot stayed at", to)
	}
	a := acquire(t, s, want(t, s, "gw", "m", "h"))
	must(t, s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{}))
	heard("ticket", "m")
	must(t, s.Set(ctx, state.Pins, "m", "1"))
	heard("settings", "m")
	kit.Eventually(t, "the mirror has it", func() bool { return m.Snapshot().Hosts["h"].Loading == a.Ticket })
}

// move moves the slot of a key, with all its content, to the node after its owner.
func move(t *testing.T, c *testenv.RedisCluster, all *redis.ClusterClient, key string) (from, to string) {
	t.Helper()
	slot, err := all.ClusterKeySlot(ctx, key).Result()
	must(t, err)
	owner, err := all.MasterForKey(ctx, key)
	must(t, err)
	from = owner.Options().Addr
	next := (slices.Index(c.Addrs, from) + 1) % len(c.Addrs)
	to = c.Addrs[next]
	nodes := make([]*redis.Client, len(c.Addrs))
	ids := make([]string, len(c.Addrs))
	for i := range nodes {
		nodes[i] = c.Node(t, i)
		ids[i], err = nodes[i].ClusterMyID(ctx).Result()
		must(t, err)
	}
	set := func(node *redis.Client, args ...any) {
		t.Helper()
		must(t, node.Do(ctx, append([]any{"CLUSTER", "SETSLOT", slot}, args...)...).Err())
	}
	old := slices.Index(c.Addrs, from)
	set(nodes[next], "IMPORTING", ids[old])
	set(nodes[old], "MIGRATING", ids[next])
	keys, err := nodes[old].ClusterGetKeysInSlot(ctx, int(slot), 1000).Result()
	must(t, err)
	host, port, _ := strings.Cut(to, ":")
	args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
	for _, k := range keys {
		args = append(args, k)
	}
	must(t, nodes[old].Do(ctx, args...).Err())
	for _, i := range []int{next, old} {
		set(nodes[i], "NODE", ids[next])
	}
	return from, to
}

// TestClusterCallsOnce checks that only the caller repeats a call without a timely response, on a Cluster as on a
// single node, since the call may have taken effect.
func TestClusterCallsOnce(t *testing.T) {
	b := oneNode(t)
	c, err := state.Client(state.Options{URL: b.url, Timeout: 100 * time.Millisecond})
	must(t, err)
	defer c.Close()
	kit.Eventually(t, "the client is connected", func() bool { return c.Ping(ctx).Err() == nil })
	const slow = `redis.call('INCR', KEYS[1]) local function ms() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
		local till = ms() + 600 while ms() < till do end return 1`
	calls := map[string]func(key string) error{
		"alone": func(key string) error { return c.Eval(ctx, slow, []string{key}).Err() },
		"in a pipeline": func(key string) error {
			_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error { p.Eval(ctx, slow, []string{key}); return nil })
			return err
		},
		"in a transaction": func(key string) error {
			_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error { p.Eval(ctx, slow, []string{key}); return nil })
			return err
		},
	}
	for name, call := range calls {
		key := fmt.Sprintf("count {%s}", name)
		var answered redis.Error
		if err := call(key); err == nil || errors.As(err, &answered) {
			t.Fatalf("%s: %v, want no response in time", name, err)
		}
		kit.Eventually(t, "the server responds again", func() bool { return b.rdb.Ping(ctx).Err() == nil })
		if n, err := b.rdb.Get(ctx, key).Int(); n != 1 || err != nil {
			t.Errorf("%s: took effect %d times, %v", name, n, err)
		}
		kit.Eventually(t, "the client recovers", func() bool { return c.Ping(ctx).Err() == nil })
	}
}
