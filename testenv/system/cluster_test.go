package system

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// TestCluster tells the whole story over a Redis Cluster with TLS, as a serverless cache is one: gateway, runner and warmer
// find it by one node's address and check every node's certificate. One system, each step goes on from the one before.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.StartRedisCluster(t)
	models := calls.Catalogue{"a": "llm, " + calls.Options("--load-time 200ms"), "b": "llm", "e": "embedding"}
	s := testenv.Start(t, testenv.Spec{
		Models: models.YAML(calls.LocalHost), Cluster: cluster, Patient: true, Args: []string{"--idle=1h", "--host-idle=1s", "--host-min-up=1s", "--every=100ms"},
	})
	w := &world{worlds.Of(t, models, s)}
	owner, err := cluster.Client(t).MasterForKey(t.Context(), "rv:{main}:hosts")
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(cluster.Addrs, owner.Options().Addr)
	heard := listen(t, cluster.Node(t, (at+1)%len(cluster.Addrs)))

	t.Run("chat_of_many_makes_one_load", func(t *testing.T) {
		var many sync.WaitGroup
		for range 8 {
			many.Go(func() {
				if a := w.Ask("a"); a.Err != nil || a.Status != http.StatusOK {
					t.Errorf("chat: %v", a)
				}
			})
		}
		many.Wait()
		if n := w.Spawns("a"); n != 1 {
			t.Errorf("%d engines were started", n)
		}
	})
	t.Run("stream", func(t *testing.T) { w.Chat("a", 8).Whole(t) })
	t.Run("embeddings", func(t *testing.T) {
		if a := w.Ask("e"); a.Err != nil || a.Status != http.StatusOK {
			t.Error(a)
		}
	})
	t.Run("swap", func(t *testing.T) {
		if a := w.Ask("b"); a.Err != nil || a.Status != http.StatusOK {
			t.Error(a)
		}
		kit.Becomes(t, "loaded", []string{"b", "e"}, w.Loaded)
		// The subscriber is on a node that has none of the pool's keys.
		kit.Becomes(t, "events not heard", []string{}, func() []string { return heard.missing("a loaded", "e loaded", "a unloaded", "b loading", "b loaded") })
	})
	t.Run("health", func(t *testing.T) {
		for _, path := range []string{"/health", "/ready", "/v1/health"} {
			if a := (w.Get(path)); a.Status != http.StatusOK {
				t.Errorf("%s: %v", path, a)
			}
		}
	})
	t.Run("one_slot", func(t *testing.T) {
		for i := range cluster.Addrs {
			keys, err := cluster.Node(t, i).Keys(t.Context(), "rv:*").Result()
			if err != nil || len(keys) > 0 != (i == at) {
				t.Errorf("node %d has %q, %v; the pool is on node %d", i, keys, err, at)
			}
		}
	})
	t.Run("commands", func(t *testing.T) {
		var report struct{ Hosts []struct{ Models int } }
		out := command(t, cluster, "warmer", "--once", "--dry-run", "--json")
		if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Hosts) != 1 || report.Hosts[0].Models == 0 {
			t.Errorf("warmer: %v\n%s", err, out)
		}
		if err := w.Rdb.Set(t.Context(), "mm:main:00000000000000aa:"+strings.Repeat("0", 64), "12345", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if out := command(t, cluster, "gateway", "mm"); !strings.Contains(out, "00000000000000aa  1") {
			t.Errorf("gateway mm:\n%s", out)
		}
	})
	t.Run("sleep_and_wake", func(t *testing.T) {
		catalog := func() string { return w.Rdb.HGet(t.Context(), "rv:{main}:catalog", "version").Val() }
		patient := catalog()
		w.SetModels("defaults: {idle: 300ms}\n" + models.YAML(calls.LocalHost))
		host := func() string { return w.Rdb.HGet(t.Context(), "rv:{main}:host:local", "state").Val() }
		kit.Becomes(t, "host", "asleep", host)
		kit.Becomes(t, "processes", 0, func() int { return len(w.Processes()) })
		w.SetModels(models.YAML(calls.LocalHost))
		kit.Becomes(t, "catalogue", patient, catalog)
		if a := w.Ask("b"); a.Err != nil || a.Status != http.StatusOK || host() != "ready" {
			t.Errorf("%v, the host is %s", a, host())
		}
	})
	t.Run("redis_away_and_emptied", func(t *testing.T) {
		pid := w.Engine("b")
		cluster.Kill(at)
		w.Use("b") // from the mirror
		cluster.Restart(at)
		kit.Becomes(t, "loaded", []string{"b"}, w.loadedNow)
		if now := w.Engine("b"); now != pid {
			t.Errorf("the engine is process %d, it was %d", now, pid)
		}
		kit.Becomes(t, "ready", http.StatusOK, func() int { return w.Get("/ready").Status })
		w.Use("a") // a swap
	})
}

// loadedNow is loaded while Redis may be away.
func (w *world) loadedNow() []string {
	names, err := w.Rdb.SMembers(w.T.Context(), "rv:{main}:models:local").Result()
	if err != nil {
		return []string{err.Error()}
	}
	return names
}

// command runs a program on the cluster and returns what it printed.
func command(t *testing.T, cluster *testenv.RedisCluster, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*kit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Build(t, program), args...)
	cmd.Env = append(os.Environ(), "REVEILLE_REDIS_URL="+cluster.URL()+"?"+testenv.PatientCalls, "SSL_CERT_FILE="+cluster.Authority)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, errs.String())
	}
	return string(out)
}

// journal is what the pool's events have told of models, in order.
type journal struct {
	mu    sync.Mutex
	steps []string
}

// listen subscribes; nothing that happens after it returns is missed.
func listen(t *testing.T, node *redis.Client) *journal {
	t.Helper()
	sub := node.Subscribe(t.Context(), "rv:{main}:events")
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	j := &journal{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for m := range sub.Channel(redis.WithChannelSize(1000)) {
			var event struct{ Kind, Model, State string }
			if json.Unmarshal([]byte(m.Payload), &event) == nil && event.Kind == "model" {
				j.mu.Lock()
				j.steps = append(j.steps, event.Model+" "+event.State)
				j.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() { _ = sub.Close(); wg.Wait() })
	return j
}

// missing returns those of the steps that were not told after the ones before them.
func (j *journal) missing(steps ...string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, told := range j.steps {
		if len(steps) > 0 && told == steps[0] {
			steps = steps[1:]
		}
	}
	return steps
}
