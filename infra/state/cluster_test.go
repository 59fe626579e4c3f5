package state_test

import (
	"testing"

	"reveille/infra/state"
	"reveille/testenv"
)

// TestCluster: scripts name their keys by prefix alone; all of them share the pool's slot, so a Cluster takes them.
func TestCluster(t *testing.T) {
	b := newBench(t, testenv.StartRedis(t, "--cluster-enabled", "yes").Addr)
	must(t, b.rdb.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	eventually(t, "cluster is up", func() bool {
		return b.rdb.Set(ctx, "probe", "1", 0).Err() == nil && b.rdb.Del(ctx, "probe").Err() == nil
	})
	s := b.open(state.Options{URL: b.url + "?cluster=true", Pool: "main", Now: func() int64 { return b.now }})
	g := register(t, s, "h", map[string]string{"old": "llm"})
	a := acquire(t, s, want(t, s, "gw", "m", "h"))
	must(t, s.Begin(ctx, "h", g, a.Ticket))
	_, err := s.Finish(ctx, "h", g, a.Ticket, state.Outcome{})
	must(t, err)
	must(t, s.Set(ctx, state.Pins, "m", "1"))
	m := runMirror(t, s, nil)
	eventually(t, "host in the mirror", func() bool { return m.Snapshot().Hosts["h"] != nil })
	slot, err := b.rdb.ClusterKeySlot(ctx, prefix).Result()
	must(t, err)
	keys, err := b.rdb.Keys(ctx, "*").Result()
	must(t, err)
	for _, k := range keys {
		at, err := b.rdb.ClusterKeySlot(ctx, k).Result()
		must(t, err)
		equal(t, "slot of "+k, at, slot)
	}
}
