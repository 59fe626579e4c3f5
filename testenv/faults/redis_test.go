package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// away is the response to a cold request without Redis.
var away = calm{status: 503, typ: "server_error", code: "state_unavailable", retry: 5}

// Rows 1, 2 and 5: a Redis that cannot be reached, does not answer, answers too late, or refuses to write. Warm requests
// go on, cold ones are told to come again, nothing is stopped, and all is well once it is back.
func TestRow01RedisAway(t *testing.T) {
	for _, tc := range []struct {
		name       string
		args       []string
		harm, heal func(w *world, s *testenv.RedisServer, f *testenv.FaultProxy)
		empty      bool // it comes back without data
	}{
		{name: "down", empty: true,
			harm: func(_ *world, s *testenv.RedisServer, _ *testenv.FaultProxy) { s.Kill() },
			heal: func(_ *world, s *testenv.RedisServer, _ *testenv.FaultProxy) { s.Restart() }},
		{name: "frozen",
			harm: func(_ *world, s *testenv.RedisServer, _ *testenv.FaultProxy) { s.Freeze() },
			heal: func(_ *world, s *testenv.RedisServer, _ *testenv.FaultProxy) { s.Thaw() }},
		{name: "row 2, slow",
			harm: func(_ *world, _ *testenv.RedisServer, f *testenv.FaultProxy) { f.Delay(time.Second) },
			heal: func(_ *world, _ *testenv.RedisServer, f *testenv.FaultProxy) { f.Delay(0) }},
		{name: "cut off",
			harm: func(_ *world, _ *testenv.RedisServer, f *testenv.FaultProxy) { f.Refuse(true); f.Cut() },
			heal: func(_ *world, _ *testenv.RedisServer, f *testenv.FaultProxy) { f.Refuse(false) }},
		{name: "row 5, out of memory",
			harm: func(w *world, _ *testenv.RedisServer, _ *testenv.FaultProxy) { w.config("maxmemory", "1mb") },
			heal: func(w *world, _ *testenv.RedisServer, _ *testenv.FaultProxy) { w.config("maxmemory", "0") }},
		{name: "row 5, cannot save", args: []string{"--enable-protected-configs", "yes", "--save", "3600 1"},
			harm: func(w *world, _ *testenv.RedisServer, _ *testenv.FaultProxy) { w.misconfigure() },
			heal: func(w *world, _ *testenv.RedisServer, _ *testenv.FaultProxy) {
				w.config("stop-writes-on-bgsave-error", "no")
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.StartRedis(t, tc.args...)
			flaky := testenv.NewFlaky(t, server.Addr)
			models := calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "e": "embedding", "cold": "reranking"}
			w := &world{worlds.StartOn(t, models, &testenv.RedisServer{Addr: flaky.Addr})}
			w.Rdb = worlds.RedisAt(t, server.Addr)
			w.Use("e")
			s := w.Chat("a", 100000)
			pids := func() []int { return []int{w.Engine("a"), w.Engine("e")} }
			before := pids()

			tc.harm(w, server, flaky)
			var longest time.Duration
			for i := range 12 { // more than it takes to open the breaker
				if a := w.Use("e"); a.Took > soon {
					t.Errorf("a warm request took %v", a.Took)
				}
				a := w.Ask("cold")
				away.must(t, fmt.Sprintf("cold request %d", i), a)
				longest = max(longest, a.Took)
			}
			if longest > soon {
				t.Errorf("a cold request was held for %v", longest)
			}
			t.Logf("longest refusal of a cold request: %v", longest)
			for range 3 {
				if _, err := s.Next(); err != nil {
					t.Fatalf("the open stream ended: %v", err)
				}
			}

			tc.heal(w, server, flaky)
			late := time.Now().Add(kit.Patience)
			a := w.Ask("cold")
			for ; !a.OK() && time.Now().Before(late); a = w.Ask("cold") {
				away.must(t, "a cold request afterwards", a)
				time.Sleep(time.Duration(a.RetryAfter()) * time.Second)
			}
			if !a.OK() {
				t.Errorf("a cold request %v after Redis came back: %v", kit.Patience, a)
			}
			kit.Becomes(t, "processes", before, pids)
			if n := w.Spawns("a") + w.Spawns("e") + w.Spawns("cold"); n != 3 {
				t.Errorf("%d engines were started, want 3: nothing had to be stopped or loaded twice", n)
			}
			kit.Becomes(t, "tickets in the queue", 0, w.queued)
			if _, err := s.Next(); err != nil {
				t.Errorf("the open stream ended: %v", err)
			}
			s.Leave()
			if log := w.Log(); strings.Count(log, `msg="Redis unavailable"`) > 2*strings.Count(log, `msg="Redis available"`)+2 {
				t.Errorf("more lines than changes:\n%s", log)
			}
		})
	}
}

func (w *world) config(name, value string) {
	w.T.Helper()
	if err := w.Rdb.ConfigSet(w.T.Context(), name, value).Err(); err != nil {
		w.T.Fatal(err)
	}
}

// misconfigure makes a save of Redis fail, after which it refuses writes.
func (w *world) misconfigure() {
	w.T.Helper()
	dir := filepath.Join(w.T.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.T.Fatal(err)
	}
	w.config("dir", dir)
	if err := os.Remove(dir); err != nil {
		w.T.Fatal(err)
	}
	_ = w.Rdb.BgSave(w.T.Context()).Err() // how it ends is asked for next
	kit.Becomes(w.T, "a write", true, func() bool {
		return redis.HasErrorPrefix(w.Rdb.Set(w.T.Context(), "probe", "1", time.Second).Err(), "MISCONF")
	})
}

// Rows 3 and 6: a primary is demoted, and its successor is killed. Models that are loaded are served throughout, their
// processes stay, and loads go on.
func TestRow03Failover(t *testing.T) {
	t.Parallel()
	one := testenv.StartRedis(t)
	host, port, _ := strings.Cut(one.Addr, ":")
	two := testenv.StartRedis(t, "--replicaof", host+" "+port)
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	at := testenv.FreePort(t)
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor main %s %s 1\nsentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 4000\n",
		at, t.TempDir(), host, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.StartProgram(t, "sentinel", "redis-server", conf, "--sentinel").Await(regexp.MustCompile(`\+monitor master`))
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", at)})
	t.Cleanup(func() { sentinel.Close() })
	primary := func() string {
		a, _ := sentinel.GetMasterAddrByName(t.Context(), "main").Result()
		return strings.Join(a, ":")
	}
	kit.Becomes(t, "replicas known to the sentinel", 1, func() int { l, _ := sentinel.Replicas(t.Context(), "main").Result(); return len(l) })
	linked := func(of, to string) func() bool {
		c := worlds.RedisAt(t, of)
		return func() bool {
			info := c.Info(t.Context(), "replication").Val()
			_, p, _ := strings.Cut(to, ":")
			return strings.Contains(info, "role:slave") && strings.Contains(info, "master_port:"+p) && strings.Contains(info, "master_link_status:up")
		}
	}
	kit.Becomes(t, "the replica is in step", true, linked(two.Addr, one.Addr))

	w := &world{worlds.StartOn(t, calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "e": "embedding", "r1": "reranking", "r2": "reranking"}, one,
		fmt.Sprintf("--redis-url=redis://127.0.0.1:%d/0?master_name=main", at))}
	w.Use("e")
	s := w.Chat("a", 100000)
	w.Use("r1")
	pid := w.Engine("a")
	if pid == 0 {
		t.Fatal("no engine of a")
	}
	// cold asks for a model that is not loaded until it is served; each refusal has its one answer.
	cold := func(what, model string) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			a := w.Ask(model)
			if a.OK() {
				t.Logf("%s: %s served after %v", what, model, time.Since(began))
				return
			}
			away.must(t, what, a)
			if time.Since(began) > kit.Patience {
				t.Fatalf("%s: %v", what, a)
			}
			w.Use("e")
		}
	}

	if err := sentinel.Failover(t.Context(), "main").Err(); err != nil {
		t.Fatal(err)
	}
	kit.Becomes(t, "primary after the failover", two.Addr, primary)
	w.Use("e")
	cold("after a failover", "r2")
	w.Rdb = worlds.RedisAt(t, two.Addr)
	kit.Becomes(t, "a's process in the new primary", pid, func() int { return w.Engine("a") })

	kit.Becomes(t, "the demoted primary is in step", true, linked(one.Addr, two.Addr))
	two.Kill()
	w.Use("e")
	cold("after the primary was killed", "r1")
	kit.Becomes(t, "primary after the kill", one.Addr, primary)
	w.Rdb = worlds.RedisAt(t, one.Addr)
	kit.Becomes(t, "loaded in the new primary", []string{"a", "e", "r1"}, w.Loaded)
	if now := w.Engine("a"); now != pid || w.Spawns("a") != 1 || w.Spawns("e") != 1 {
		t.Errorf("a's process %d became %d", pid, now)
	}
	if _, err := s.Next(); err != nil {
		t.Errorf("the open stream ended: %v", err)
	}
	s.Leave()
}

// Programs of another version than those of the pool end at their start and say what to do.
func TestPoolOfAnotherVersion(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	if err := worlds.RedisAt(t, server.Addr).Set(t.Context(), "rv:{main}:format", "0", 0).Err(); err != nil {
		t.Fatal(err)
	}
	models := filepath.Join(t.TempDir(), "models.yaml")
	hosts := "hosts:\n  h: {driver: exec, devices: [cpu], commands: {wake: [\"false\"], sleep: [\"false\"]}}\n"
	if err := os.WriteFile(models, []byte(calls.Catalogue{"m": "llm"}.YAML(hosts)), 0o600); err != nil {
		t.Fatal(err)
	}
	shared := []string{"--redis-url=redis://" + server.Addr + "/0", "--runner-secret=" + strings.Repeat("s", 32)}
	for binary, args := range map[string][]string{
		"gateway": {"serve", "--addr=127.0.0.1:0", "--models=" + models},
		"runner":  {"--runner-addr=127.0.0.1:0", "--host=h", "--state-dir=" + testenv.ShortDir(t)},
		"warmer":  nil,
	} {
		p := testenv.StartProgram(t, binary, testenv.Build(t, binary), append(args, shared...)...)
		<-p.Exited()
		log := p.Log()
		if p.State().ExitCode() != 1 || !strings.Contains(log, "end them all") || !strings.Contains(log, "format is 0, and this program speaks format") {
			t.Errorf("%s: %v\n%s", binary, p.State(), log)
		}
	}
}

// Row 7: the reply to a committed acquire is lost. The repeat finds the first ticket, and the client notices nothing.
func TestRow07ReplyLost(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	lossy := testenv.NewFlaky(t, server.Addr)
	lost := lossy.LoseReply("\r\nunlucky\r\n$4\r\nload\r\n")
	w := &world{worlds.StartFleet(t, worlds.Fleet{
		Models: calls.Catalogue{"unlucky": "llm", "e": "embedding"},
		Redis:  server.Addr, Hosts: []worlds.Host{{Name: "h"}}, Args: []string{"--redis-url=redis://" + lossy.Addr + "/0"},
	})}
	w.Use("e")
	a := w.Use("unlucky")
	select {
	case <-lost:
	default:
		t.Error("no reply was lost")
	}
	if n := w.Spawns("unlucky"); n != 1 || a.Header.Get("x-cold-start") != "1" {
		t.Errorf("%d spawns, want 1; %v", n, a.Header)
	}
	tickets := 0
	for _, key := range w.Rdb.Keys(t.Context(), "rv:{main}:ticket:*").Val() {
		if w.HGet(key, "model") == "unlucky" {
			tickets++
		}
	}
	if tickets != 1 {
		t.Errorf("%d tickets for one request", tickets)
	}
}

// Row 7: the reply to the end of a load is lost. The runner tells it again and keeps the model for the gateway that waited,
// until that gateway has come or gives up.
func TestRow07OutcomeLost(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	lossy := testenv.NewFlaky(t, server.Addr)
	lost := lossy.LoseReply("\r\n$5\r\nready\r\n")
	w := &world{worlds.StartFleet(t, worlds.Fleet{
		Models: calls.Catalogue{"a": "llm", "b": "llm", "none": "llm, " + calls.Options("--need-file /nowhere")},
		Redis:  server.Addr, Hosts: []worlds.Host{{Name: "h", Redis: lossy.Addr}},
	})}
	if a := w.Ask("none"); a.OK() { // what is lost shall not be Redis' word that it has no such script yet
		t.Fatal(a)
	}
	store, err := state.Open(state.Options{URL: "redis://" + server.Addr, Secret: []byte(worlds.Secret), Timeout: kit.Patience})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	registered := w.view().Generation

	// A gateway that waits for a, and is slow to send its request.
	const slowcoach = "slowcoach"
	var place state.Acquired
	kit.Becomes(t, "a place in the load of a", nil, func() error {
		snap, err := store.Snapshot(t.Context())
		if err == nil {
			place, err = store.Acquire(t.Context(), state.Want{Gateway: slowcoach, Model: "a", Host: w.Host, Revision: snap.RevisionOf(w.Host, "a")})
		}
		return err
	})
	kit.Becomes(t, "outcome of the load", "ready", func() string {
		st, err := store.Renew(t.Context(), slowcoach, state.Renewal{Ticket: place.Ticket, Waiting: 1})
		if err != nil {
			t.Fatal(err)
		}
		return string(st[0].Record.State)
	})
	select {
	case <-lost:
	case <-time.After(kit.Patience):
		t.Fatal("no reply was lost")
	}
	kit.Becomes(t, "registered anew", true, func() bool { return w.view().Generation > registered })
	if m := w.view().Models; len(m) != 1 || m[0].Reserved != 1 {
		t.Errorf("the runner holds %+v, want a kept for one", m)
	}
	if err := store.ReleaseTicket(t.Context(), slowcoach, place.Ticket, false); err != nil {
		t.Fatal(err)
	}
	w.Use("b")
	if n := w.Spawns("a"); n != 1 {
		t.Errorf("%d spawns of a, want 1", n)
	}
}
