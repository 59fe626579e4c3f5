package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// Row 14: a gateway is killed while a model loads for its client. The load goes on, and another gateway's client gets it.
func TestRow14GatewayKilledMidLoad(t *testing.T) {
	t.Parallel()
	w := front(t, 2, calls.Catalogue{"a": "llm, " + calls.Options("--load-time 2s"), "b": "llm", "busy": "embedding, " + calls.Options(worlds.Slow), "e": "embedding"})
	g := w.Gateways
	first := worlds.Later(func() calls.Answer { return w.Ask("a") })
	kit.Becomes(t, "state of a", "loading", func() string { return w.Field("a", "state") })
	second := worlds.Later(func() calls.Answer { return w.AskAt(g[1].URL, "a") })
	time.Sleep(100 * time.Millisecond) // it need not have come this far, but mostly has
	g[0].Kill()
	if a := worlds.Await(t, "the killed gateway's client", first); a.Err == nil {
		t.Errorf("the killed gateway answered %v", a)
	}
	if a := worlds.Await(t, "the other gateway's client", second); !a.OK() {
		t.Errorf("the other gateway's client: %v", a)
	}
	if n := w.Spawns("a"); n != 1 {
		t.Errorf("%d spawns of a, want 1", n)
	}
	// What the dead gateway was owed ends with its lease, so that its model may go.
	if a := w.AskAt(g[1].URL, "b"); !a.OK() || a.Took > 40*time.Second {
		t.Errorf("the next model: %v", a)
	} else {
		t.Logf("the next model was loaded %v after", a.Took)
	}
}

// Row 15: a gateway that was paused for longer than its leases finds its ticket dropped and asks again; meanwhile it
// held nobody up.
func TestRow15PausedGateway(t *testing.T) {
	t.Parallel()
	w := front(t, 2, calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "b": "llm", "c": "llm"}, "--hold=120s")
	g := w.Gateways
	s := calls.Open(t, w.Client, g[1].URL, "a", 100000)
	held := worlds.Later(func() calls.Answer { return w.Ask("b") })
	kit.Becomes(t, "queue", 1, w.queued)
	g[0].Signal(syscall.SIGSTOP)
	resume := sync.OnceFunc(func() { g[0].Signal(syscall.SIGCONT) })
	defer resume()
	paused := time.Now()
	s.Leave()
	if a := w.AskAt(g[1].URL, "c"); !a.OK() {
		t.Errorf("another gateway's client: %v", a)
	}
	if took := time.Since(paused); took > 40*time.Second {
		t.Errorf("it waited %v for a gateway that sleeps", took)
	}
	time.Sleep(max(0, 16*time.Second-time.Since(paused))) // beyond the lease of 15 s
	kit.Becomes(t, "queue while the gateway sleeps", 0, w.queued)
	resume()
	if a := worlds.Await(t, "the paused gateway's client", held); !a.OK() {
		t.Errorf("the paused gateway's client: %v", a)
	}
	if a := w.Use("c"); a.Header.Get("x-model") != "c" {
		t.Errorf("afterwards: %v", a.Header)
	}
}

// Row 17: a gateway cannot reach the runner. Before a request was sent it is told so; after, it broke off. Nothing is
// stopped or loaded twice for it.
func TestRow17Partition(t *testing.T) {
	t.Parallel()
	redis := testenv.Redis(t)
	toRedis := testenv.NewFlaky(t, redis)
	w := &world{worlds.StartFleet(t, worlds.Fleet{
		Models: calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "e": "embedding", "silent": "reranking, " + calls.Options("--hang infer")},
		Redis:  redis, Hosts: []worlds.Host{{Name: "h", Redis: toRedis.Addr}},
	})}
	for model := range w.Models {
		w.load(model)
	}
	flaky := testenv.NewFlaky(t, w.HGet("rv:{main}:host:h", "addr"))
	toRedis.Pause() // or the runner would see that its record names another address, and register again
	w.move(flaky.Addr)
	kit.Becomes(t, "requests take the relay", true, func() bool { w.Use("e"); return flaky.Open() > 0 })
	s := w.Chat("a", 100000)
	silent := worlds.Later(func() calls.Answer { return w.Ask("silent") })
	kit.Becomes(t, "requests of silent", 1, func() int { return w.inFlight("silent") })
	before := []int{w.Engine("a"), w.Engine("e"), w.Engine("silent")}

	flaky.Refuse(true)
	flaky.Cut()
	calm{status: 502, typ: "server_error", code: "runner_failed", retry: 2}.must(t, "a request that was sent", worlds.Await(t, "silent", silent))
	last, err := s.Last()
	endsWith(t, "stream", last, err, "runner_failed")
	toRedis.Resume()
	// Nobody listens where the runner is said to be, until it registers again.
	nowhere := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	var unsent calls.Answer
	kit.Becomes(t, "a request that cannot be sent", "host_unreachable", func() string {
		w.move(nowhere)
		unsent = w.AskFor("e", 1)
		return unsent.Code()
	})
	calm{status: 503, typ: "server_error", code: "host_unreachable", retry: 5}.must(t, "a request that could not be sent", unsent)
	w.Use("e") // waits until the host can be reached again
	if after := []int{w.Engine("a"), w.Engine("e"), w.Engine("silent")}; fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("processes %v became %v", before, after)
	}
}

// Row 18: clients of two gateways wait for one load that has not begun. The first to leave gives up its own place, the last
// one the load.
func TestRow18ClientsLeaveTheQueue(t *testing.T) {
	t.Parallel()
	w := front(t, 2, calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "b": "llm"})
	g := w.Gateways
	s := w.Chat("a", 100000)
	waiters := func() int {
		ticket := w.Rdb.LIndex(t.Context(), "rv:{main}:queue:"+w.Host, 0).Val()
		return int(w.Rdb.ZCard(t.Context(), "rv:{main}:waiters:"+ticket).Val())
	}
	var leave []func()
	for i := range g {
		ctx, cancel := context.WithCancel(t.Context())
		leave = append(leave, cancel)
		worlds.Later(func() calls.Answer { return calls.Chat(ctx, w.Client, g[i].URL, "b", 1, false) })
		kit.Becomes(t, "gateways that wait", i+1, waiters)
	}
	for i, left := range []int{1, 0} {
		leave[i]()
		kit.Becomes(t, "gateways that wait", left, waiters)
		kit.Becomes(t, "queue", left, w.queued)
		kit.Becomes(t, "a departure is counted", true, func() bool {
			return strings.Contains(string(calls.Get(t.Context(), w.Client, g[i].URL+"/metrics").Body), `reveille_gateway_answers_total{route="chat",status="499"} 1`)
		})
	}
	if _, err := s.Next(); err != nil || w.Spawns("b") != 0 {
		t.Errorf("the stream: %v; %d starts of b, want none", err, w.Spawns("b"))
	}
}

// Row 21: very many first requests for one cold model, over four gateways, make one load and get their responses.
func TestRow21Herd(t *testing.T) {
	herd := 2000
	if text := os.Getenv("FAULTS_HERD"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("FAULTS_HERD=%q: want a number above 0", text)
		}
		herd = n
	}
	w := front(t, 4, calls.Catalogue{"a": "llm, " + calls.Options("--load-time 1s --tokens 2")})
	g := w.Gateways
	client := calls.Client(t, herd)
	client.Transport.(*http.Transport).DisableKeepAlives = true
	ctx, cancel := context.WithTimeout(t.Context(), 5*kit.Patience)
	defer cancel()
	answers := make([]calls.Answer, herd)
	began := time.Now()
	var all sync.WaitGroup
	for i := range herd {
		all.Go(func() { answers[i] = calls.Chat(ctx, client, g[i%len(g)].URL, "a", 2, i%2 == 0) })
	}
	all.Wait()
	took := time.Since(began)
	bad, shown := 0, ""
	var longest time.Duration
	for _, a := range answers {
		if longest = max(longest, a.Took); !a.OK() {
			bad++
			shown = a.String()
		}
	}
	if bad > 0 {
		t.Errorf("%d of %d were not served, for example: %s", bad, herd, shown)
	}
	if n := w.Spawns("a"); n != 1 {
		t.Errorf("%d spawns, want 1", n)
	}
	t.Logf("%d requests in %v, the longest %v, one spawn", herd, took, longest)
	kit.Becomes(t, "open requests afterwards", "0", func() string { return w.Field("a", "in_flight") })
}

// Row 31: a gateway that is told to end becomes unready, tells those who wait, lets streams come to their end, and goes
// with status 0. Its waiters find another gateway.
func TestRow31GatewayTerminated(t *testing.T) {
	t.Parallel()
	w := front(t, 2, calls.Catalogue{"a": "llm, " + calls.Options("--token-delay 20ms --tokens 150"), "b": "llm"})
	g := w.Gateways
	s := w.Chat("a", 150)
	held := worlds.Later(func() calls.Answer { return w.Ask("b") })
	kit.Becomes(t, "queue", 1, w.queued)
	g[0].Signal(syscall.SIGTERM)
	calm{status: 503, typ: "server_error", code: "draining", retry: 1}.must(t, "a request that waits", worlds.Await(t, "held", held))
	if a := calls.Get(t.Context(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, w.URL+"/ready"); a.Err == nil && a.Status != 503 {
		t.Errorf("ready while it drains: %v", a)
	}
	last, err := s.Last()
	if err != nil || last != "data: [DONE]" {
		t.Errorf("the open stream ended with %.200q, %v", last, err)
	}
	select {
	case <-g[0].Exited():
		if !g[0].State().Success() {
			t.Errorf("it ended with %v", g[0].State())
		}
	case <-time.After(kit.Patience):
		t.Error("it does not end")
	}
	if a := w.AskAt(g[1].URL, "b"); !a.OK() {
		t.Errorf("by the other gateway: %v", a)
	}
}
