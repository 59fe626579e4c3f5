package attack

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// TestLargeEvents publishes events of 136 MiB on a pool's channels, those of gateways and of runners. Gateway and runner do not take them into memory, listen again
// and serve.
func TestLargeEvents(t *testing.T) {
	const growth = 64 << 20
	server := testenv.StartRedis(t)
	url, secret := "redis://"+server.Addr+"/0", strings.Repeat("s", 32)
	g := testenv.StartGateway(t, url, secret, calls.Catalogue{"m": "llm"}.YAML(""))
	r, _ := testenv.StartRunner(t, url, secret, "h", t.TempDir(), "--devices=cpu")
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ReadTimeout: limit, WriteTimeout: limit})
	defer rdb.Close()
	ctx := t.Context()
	// Redis cuts off subscribers that are 32 MiB behind, unless the attacker tells it otherwise.
	if err := rdb.ConfigSet(ctx, "client-output-buffer-limit", "pubsub 0 0 0").Err(); err != nil {
		t.Fatal(err)
	}
	serves := func() {
		t.Helper()
		kit.Becomes(t, "an answer", 200, func() int {
			return call(t, "POST", g.URL+"/v1/chat/completions", calls.ChatBody("m", 1, false), "x-wait-timeout: 1").Status
		})
	}
	listeners := func() {
		t.Helper()
		kit.Becomes(t, "listeners that have read all", 2, func() int {
			return strings.Count(rdb.Do(ctx, "CLIENT", "LIST", "TYPE", "PUBSUB").String(), " omem=0 ")
		})
	}
	serves()
	before := map[*testenv.Program]int64{g: rss(t, g.PID()), r: rss(t, r.PID())}
	event := `{"kind":"host","host":"h","state":"` + strings.Repeat("x", 136<<20) + `"}`
	for range 3 {
		listeners()
		for _, channel := range []string{"rv:{main}:events", "rv:{main}:events:pool"} {
			if n := rdb.Publish(ctx, channel, event).Val(); n != 1 {
				t.Errorf("%d processes were sent an event on %s, want 1", n, channel)
			}
		}
	}
	listeners()
	serves()
	for _, p := range []*testenv.Program{g, r} {
		peak := memory(t, p.PID(), "VmHWM:") - before[p]
		t.Logf("%v grew by %d MiB at most", p.PID(), peak>>20)
		if peak > growth {
			t.Errorf("process %d grew by %d MiB", p.PID(), peak>>20)
		}
		if n := strings.Count(p.Log(), "an event announces more than"); n != 1 {
			t.Errorf("the log tells %d times of large events:\n%.2000s", n, p.Log())
		}
	}
}
