package system

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

func TestHundredFirstRequestsMakeOneLoad(t *testing.T) {
	t.Parallel()
	w := start(t, catalogue{"a": "llm, " + calls.Options("--load-time 500ms")})
	var got []<-chan answer
	for range 100 {
		c, _ := w.later("a")
		got = append(got, c)
	}
	for i, c := range got {
		if a := w.await(fmt.Sprint("request ", i), c); a.header.Get("x-model") != "a" {
			t.Errorf("request %d: x-model %q", i, a.header.Get("x-model"))
		}
	}
	if n := w.loads("a"); n != 1 {
		t.Errorf("%d engines were started, want 1", n)
	}
	if n := w.stats("a").Calls["chat/completions"]; n != 100 {
		t.Errorf("the engine saw %d calls, want 100: %v", n, w.stats("a").Calls)
	}
}

// A client that leaves while its model loads does not end the load, and what was loaded owes it nothing.
func TestClientLeavesLoading(t *testing.T) {
	t.Parallel()
	w := start(t, catalogue{"a": "llm, " + calls.Options("--load-time 1s"), "b": "llm"})
	_, leave := w.later("a")
	kit.Becomes(t, "state of a", "loading", func() string { return w.field("a", "state") })
	leave()
	kit.Becomes(t, "loaded", []string{"a"}, w.loaded)
	began := time.Now()
	w.use("b")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("b waited %v for a model that nobody wants any more", took)
	}
}

func TestClientLeavesStreaming(t *testing.T) {
	t.Parallel()
	w := start(t, catalogue{"a": "llm, " + calls.Options(slow), "silent": "embedding, " + calls.Options("--hang infer")})
	s := w.chat("a", 100000)
	s.leave()
	kit.Becomes(t, "calls of a cancelled", 1, func() int { return w.stats("a").Cancelled })
	kit.Becomes(t, "a's open requests", "0", func() string { return w.field("a", "in_flight") })

	_, leave := w.later("silent") // not a byte will ever come
	kit.Becomes(t, "silent is loaded", []string{"a", "silent"}, w.loaded)
	kit.Becomes(t, "calls of silent", 1, func() int { return w.stats("silent").InFlight })
	leave()
	kit.Becomes(t, "calls of silent cancelled", 1, func() int { return w.stats("silent").Cancelled })
}

// An engine that dies in the middle of a stream ends it with an error event; the next request loads the model again.
func TestEngineKilled(t *testing.T) {
	t.Parallel()
	w := start(t, catalogue{"a": "llm, " + calls.Options(slow)})
	s := w.chat("a", 100000)
	pid := w.pid("a")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	endsWithError(t, s, "engine_crashed")
	kit.Becomes(t, "record of a", "", func() string { return w.field("a", "state") })
	again := w.chat("a", 100000)
	if now := w.pid("a"); now == pid || now == 0 {
		t.Errorf("process %d after %d", now, pid)
	}
	again.leave()
}

// endsWithError reads a stream that broke off: an error event is its last, and it does not look complete.
func endsWithError(t *testing.T, s *stream, code string) {
	t.Helper()
	events, err := s.rest()
	if err != nil || len(events) == 0 {
		t.Fatalf("stream: %d events, %v", len(events), err)
	}
	if last := events[len(events)-1]; !strings.HasPrefix(last, `data: {"error":`) || !strings.Contains(last, strconv.Quote(code)) {
		t.Errorf("last event %q, want an error with %s", last, code)
	}
}

// runner is the process of the local host's runner.
func (w *world) runner() testenv.Process {
	w.t.Helper()
	all := w.Processes()
	i := slices.IndexFunc(all, func(p testenv.Process) bool { return strings.Contains(p.Args, " runner ") })
	if i < 0 {
		w.t.Fatalf("no runner among %v", all)
	}
	return all[i]
}

// The engines of a runner that is killed die with it; open requests hear of it; the next request wakes the host again.
func TestRunnerKilled(t *testing.T) {
	t.Parallel()
	w := start(t, catalogue{"a": "llm, " + calls.Options(slow), "e": "embedding", "silent": "reranking, " + calls.Options("--hang infer")})
	w.use("e")
	s := w.chat("a", 100000)
	silent, _ := w.later("silent")
	kit.Becomes(t, "loaded", []string{"a", "e", "silent"}, w.loaded)
	kit.Becomes(t, "calls of silent", 1, func() int { return w.stats("silent").InFlight })
	runner := w.runner()
	engines := testenv.Descendants(runner.PID)
	if len(engines) != 3 {
		t.Fatalf("engines: %v", engines)
	}
	if err := syscall.Kill(runner.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, e := range engines {
		kit.Becomes(t, fmt.Sprint("alive: ", e), false, e.Alive)
	}
	endsWithError(t, s, "runner_failed")
	select {
	case a := <-silent:
		if a.status != http.StatusBadGateway || a.code() != "runner_failed" || a.header.Get("Retry-After") == "" {
			t.Errorf("a request that was sent and not answered: %v", a)
		}
	case <-time.After(kit.Patience):
		t.Error("a request that was sent hears nothing of the runner's death")
	}
	// Its last sockets close with its last thread: only then is no request sent to it any more.
	kit.Becomes(t, "entry of the runner's process", true, func() bool { _, err := os.Stat(fmt.Sprint("/proc/", runner.PID)); return err != nil })
	began := time.Now()
	w.use("e")
	t.Logf("served %v after the runner's death", time.Since(began))
	if w.runner() == runner {
		t.Error("the same runner")
	}
}

// Redis away: warm requests go on, cold ones are told to come again. Redis back and empty: everything recovers and
// nothing that was loaded is lost.
func TestRedisKilledAndBackEmpty(t *testing.T) {
	t.Parallel()
	w, server := startWithRedis(t, catalogue{"a": "llm, " + calls.Options(slow), "e": "embedding", "cold": "reranking"})
	w.use("e")
	s := w.chat("a", 100000)
	pids := func() []int { return []int{w.pid("a"), w.pid("e")} }
	before := pids()
	server.Kill()
	for range 20 {
		w.use("e")
	}
	a := w.ask("cold")
	after, err := strconv.Atoi(a.header.Get("Retry-After"))
	if a.status != http.StatusServiceUnavailable || a.code() != "state_unavailable" || err != nil || after < 1 || after > 60 {
		t.Errorf("a cold request without Redis: %v, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	if resp := do(w.get("/v1/health")); resp.status != http.StatusOK {
		t.Errorf("health without Redis: %v", resp)
	}
	kit.Becomes(t, "/ready without Redis", http.StatusServiceUnavailable, func() int { return do(w.get("/ready")).status })
	w.use("e")

	server.Restart()
	kit.Becomes(t, "processes after Redis came back", before, pids)
	kit.Becomes(t, "a cold request after Redis came back", http.StatusOK, func() int { return w.ask("cold").status })
	w.use("e")
	kit.Becomes(t, "/ready with Redis", http.StatusOK, func() int { return do(w.get("/ready")).status })
	if now := pids(); !slices.Equal(now, before) {
		t.Errorf("processes %v, before %v", now, before)
	}
	if n := w.loads("a") + w.loads("e"); n != 2 {
		t.Errorf("%d loads of a and e, want 2", n)
	}
	if _, err := s.next(); err != nil {
		t.Errorf("the open stream ended: %v", err)
	}
	s.leave()
}

func TestFlushAll(t *testing.T) {
	t.Parallel()
	w := start(t, catalogue{"a": "llm, " + calls.Options(slow), "b": "llm", "e": "embedding"})
	w.use("e")
	s := w.chat("a", 100000)
	waiting, _ := w.later("b")
	kit.Becomes(t, "queue", []string{"b"}, w.queued)
	pids := func() []int { return []int{w.pid("a"), w.pid("e")} }
	before := pids()
	if err := w.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	w.use("e")
	kit.Becomes(t, "processes after FLUSHALL", before, pids)
	s.leave()
	w.await("the request that waited over FLUSHALL", waiting)
	kit.Becomes(t, "loaded", []string{"b", "e"}, w.loaded)
	if n := w.loads("a") + w.loads("e"); n != 2 {
		t.Errorf("%d loads of a and e, want 2", n)
	}
}

// get makes a GET request.
func (w *world) get(path string) *http.Request {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return req
}
