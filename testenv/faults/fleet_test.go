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
)

// Row 14: a gateway is killed while a model loads for its client. The load goes on, and another gateway's client gets it.
func TestRow14GatewayKilledMidLoad(t *testing.T) {
	t.Parallel()
	w, g, _ := front(t, 2, calls.Catalogue{"a": "llm, " + calls.Options("--load-time 2s"), "b": "llm", "busy": "embedding, " + calls.Options(slow), "e": "embedding"}, testenv.Redis(t))
	first := later(func() calls.Answer { return w.ask("a") })
	kit.Becomes(t, "state of a", "loading", func() string { return w.field("a", "state") })
	second := later(func() calls.Answer { return w.askAt(g[1].URL, "a") })
	time.Sleep(100 * time.Millisecond) // it need not have come this far, but mostly has
	g[0].Kill()
	if a := await(t, "the killed gateway's client", first); a.Err == nil {
		t.Errorf("the killed gateway answered %v", a)
	}
	if a := await(t, "the other gateway's client", second); !a.OK() {
		t.Errorf("the other gateway's client: %v", a)
	}
	if n := w.spawns("a"); n != 1 {
		t.Errorf("%d spawns of a, want 1", n)
	}
	// What the dead gateway was owed ends with its lease, so that its model may go.
	if a := w.askAt(g[1].URL, "b"); !a.OK() || a.Took > 40*time.Second {
		t.Errorf("the next model: %v", a)
	} else {
		t.Logf("the next model was loaded %v after", a.Took)
	}
}

// Row 15: a gateway that was paused for longer than its leases finds its ticket dropped and asks anew; meanwhile it held
// nobody up.
func TestRow15PausedGateway(t *testing.T) {
	t.Parallel()
	w, g, _ := front(t, 2, calls.Catalogue{"a": "llm, " + calls.Options(slow), "b": "llm", "c": "llm"}, testenv.Redis(t), "--hold=120s")
	s := calls.Open(t, w.client, g[1].URL, "a", 100000)
	held := later(func() calls.Answer { return w.ask("b") })
	kit.Becomes(t, "queue", 1, w.queued)
	g[0].Signal(syscall.SIGSTOP)
	resume := sync.OnceFunc(func() { g[0].Signal(syscall.SIGCONT) })
	defer resume()
	paused := time.Now()
	s.Leave()
	if a := w.askAt(g[1].URL, "c"); !a.OK() {
		t.Errorf("another gateway's client: %v", a)
	}
	if took := time.Since(paused); took > 40*time.Second {
		t.Errorf("it waited %v for a gateway that sleeps", took)
	}
	time.Sleep(max(0, 16*time.Second-time.Since(paused))) // beyond the lease of 15 s
	kit.Becomes(t, "queue while the gateway sleeps", 0, w.queued)
	resume()
	if a := await(t, "the paused gateway's client", held); !a.OK() {
		t.Errorf("the paused gateway's client: %v", a)
	}
	if a := w.use("c"); a.Header.Get("x-model") != "c" {
		t.Errorf("afterwards: %v", a.Header)
	}
}

// Row 17: a gateway cannot reach the runner. Before a request was sent it is told so; after, it broke off. Nothing is
// stopped or loaded twice for it.
func TestRow17Partition(t *testing.T) {
	t.Parallel()
	redis := testenv.Redis(t)
	toRedis := testenv.NewFlaky(t, redis)
	w, _, _ := frontVia(t, 1, calls.Catalogue{"a": "llm, " + calls.Options(slow), "e": "embedding", "silent": "reranking, " + calls.Options("--hang infer")}, redis, toRedis.Addr)
	for model := range w.models {
		w.load(model)
	}
	flaky := testenv.NewFlaky(t, w.hget("rv:{main}:host:h", "addr"))
	toRedis.Pause() // or the runner would see that its record names another address, and register again
	w.move(flaky.Addr)
	kit.Becomes(t, "requests take the relay", true, func() bool { w.use("e"); return flaky.Open() > 0 })
	s := calls.Open(t, w.client, w.url, "a", 100000)
	silent := later(func() calls.Answer { return w.ask("silent") })
	kit.Becomes(t, "requests of silent", 1, func() int { return w.inFlight("silent") })
	before := []int{w.engine("a"), w.engine("e"), w.engine("silent")}

	flaky.Refuse(true)
	flaky.Cut()
	calm{status: 502, typ: "server_error", code: "runner_failed", retry: 2}.must(t, "a request that was sent", await(t, "silent", silent))
	last, err := s.Last()
	endsWith(t, "stream", last, err, "runner_failed")
	toRedis.Resume()
	// Nobody listens where the runner is said to be, until it registers again.
	nowhere := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	var unsent calls.Answer
	kit.Becomes(t, "a request that cannot be sent", "host_unreachable", func() string {
		w.move(nowhere)
		unsent = w.askFor("e", 1)
		return unsent.Code()
	})
	calm{status: 503, typ: "server_error", code: "host_unreachable", retry: 5}.must(t, "a request that could not be sent", unsent)
	w.use("e") // waits until the host can be reached again
	if after := []int{w.engine("a"), w.engine("e"), w.engine("silent")}; fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("processes %v became %v", before, after)
	}
}

// Row 18: clients of two gateways wait for one load that has not begun. The first to leave gives up its own place, the last
// one the load.
func TestRow18ClientsLeaveTheQueue(t *testing.T) {
	t.Parallel()
	w, g, _ := front(t, 2, calls.Catalogue{"a": "llm, " + calls.Options(slow), "b": "llm"}, testenv.Redis(t))
	s := calls.Open(t, w.client, w.url, "a", 100000)
	waiters := func() int {
		ticket := w.rdb.LIndex(t.Context(), "rv:{main}:queue:"+w.host, 0).Val()
		return int(w.rdb.ZCard(t.Context(), "rv:{main}:waiters:"+ticket).Val())
	}
	var leave []func()
	for i := range g {
		ctx, cancel := context.WithCancel(t.Context())
		leave = append(leave, cancel)
		later(func() calls.Answer { return calls.Chat(ctx, w.client, g[i].URL, "b", 1, false) })
		kit.Becomes(t, "gateways that wait", i+1, waiters)
	}
	for i, left := range []int{1, 0} {
		leave[i]()
		kit.Becomes(t, "gateways that wait", left, waiters)
		kit.Becomes(t, "queue", left, w.queued)
		kit.Becomes(t, "a departure is counted", true, func() bool {
			return strings.Contains(string(calls.Get(t.Context(), w.client, g[i].URL+"/metrics").Body), `reveille_gateway_answers_total{route="chat",status="499"} 1`)
		})
	}
	if _, err := s.Next(); err != nil || w.spawns("b") != 0 {
		t.Errorf("the stream: %v; %d starts of b, want none", err, w.spawns("b"))
	}
}

// Row 21: very many first requests for one cold model, over four gateways, make one load and get their answers.
func TestRow21Herd(t *testing.T) {
	herd := 2000
	if text := os.Getenv("FAULTS_HERD"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("FAULTS_HERD=%q: want a number above 0", text)
		}
		herd = n
	}
	w, g, _ := front(t, 4, calls.Catalogue{"a": "llm, " + calls.Options("--load-time 1s --tokens 2")}, testenv.Redis(t))
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
	if n := w.spawns("a"); n != 1 {
		t.Errorf("%d spawns, want 1", n)
	}
	t.Logf("%d requests in %v, the longest %v, one spawn", herd, took, longest)
	kit.Becomes(t, "open requests afterwards", "0", func() string { return w.field("a", "in_flight") })
}

// Row 31: a gateway that is told to end becomes unready, tells those who wait, lets streams come to their end, and goes
// with status 0. Its waiters find another gateway.
func TestRow31GatewayTerminated(t *testing.T) {
	t.Parallel()
	w, g, _ := front(t, 2, calls.Catalogue{"a": "llm, " + calls.Options("--token-delay 20ms --tokens 150"), "b": "llm"}, testenv.Redis(t))
	s := calls.Open(t, w.client, w.url, "a", 150)
	held := later(func() calls.Answer { return w.ask("b") })
	kit.Becomes(t, "queue", 1, w.queued)
	g[0].Signal(syscall.SIGTERM)
	calm{status: 503, typ: "server_error", code: "draining", retry: 1}.must(t, "a request that waits", await(t, "held", held))
	if a := calls.Get(t.Context(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, w.url+"/ready"); a.Err == nil && a.Status != 503 {
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
	if a := w.askAt(g[1].URL, "b"); !a.OK() {
		t.Errorf("by the other gateway: %v", a)
	}
}
