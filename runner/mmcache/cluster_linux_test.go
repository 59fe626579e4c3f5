package mmcache

import (
	"testing"
	"time"

	"reveille/infra/mmstats"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// TestEntriesAreSharedOnARedisCluster checks that entries spread over the nodes of a Redis Cluster with TLS, that one
// host's entries serve another, all of a request in one read, and that the list of entries finds them on every node.
func TestEntriesAreSharedOnARedisCluster(t *testing.T) {
	cluster := testenv.StartRedisCluster(t)
	host := func() *Server {
		// The certificate is not verified here: this process reads its root certificates only once, perhaps before this
		// test. The system's own test trusts the authority.
		rdb, err := state.Client(state.Options{URL: cluster.URL() + "?skip_verify=true", Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = rdb.Close() })
		return newServer(t, func(c *Config) { c.Redis, c.Bytes, c.LookupWait, c.Quota = rdb, -1, 10*time.Second, 1<<30 })
	}
	const media = 48
	args := []string{"each=12", "distinct=48", "requests=4"}
	if got := drive(t, testAttachment(t, host()).environ(), args...); got.encodes != media {
		t.Fatalf("first host: %+v", got)
	}
	all := cluster.Client(t)
	kit.Eventually(t, "all entries in the list", func() bool {
		usage, err := mmstats.List(t.Context(), all, "main")
		if err != nil {
			t.Fatal(err)
		}
		return len(usage) == 1 && usage[0].Entries == media
	})
	for i := range cluster.Addrs {
		keys, err := cluster.Node(t, i).Keys(t.Context(), "mm:main:*:*").Result()
		if err != nil || len(keys) == 0 || len(keys) == media {
			t.Errorf("node %d has %d of %d entries, %v", i, len(keys), media, err)
		}
	}
	kit.Eventually(t, "their bytes in the ledger", func() bool { return len(all.HGetAll(t.Context(), quotaKey("main")).Val()) > 0 })
	if got := drive(t, testAttachment(t, host()).environ(), args...); got.encodes != 0 || got.answered != media {
		t.Errorf("second host: %+v", got)
	}
}
