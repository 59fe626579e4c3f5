package system

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// A client that leaves while its model loads does not end the load, and what was loaded owes it nothing.
func TestClientLeavesLoading(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options("--load-time 1s"), "b": "llm"})
	_, leave := w.Later("a")
	kit.Becomes(t, "state of a", "loading", func() string { return w.Field("a", "state") })
	leave()
	kit.Becomes(t, "loaded", []string{"a"}, w.Loaded)
	began := time.Now()
	w.Use("b")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("b waited %v for a model that nobody wants any more", took)
	}
}

func TestClientLeavesStreaming(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "silent": "embedding, " + calls.Options("--hang infer")})
	s := w.Chat("a", 100000)
	s.Leave()
	kit.Becomes(t, "calls of a canceled", 1, func() int { return w.stats("a").Canceled })
	kit.Becomes(t, "a's open requests", "0", func() string { return w.Field("a", "in_flight") })

	_, leave := w.Later("silent") // not a byte will ever come
	kit.Becomes(t, "silent is loaded", []string{"a", "silent"}, w.Loaded)
	kit.Becomes(t, "calls of silent", 1, func() int { return w.stats("silent").InFlight })
	leave()
	kit.Becomes(t, "calls of silent canceled", 1, func() int { return w.stats("silent").Canceled })
}

// An engine that dies in the middle of a stream ends it with an error event; the next request loads the model again.
func TestEngineKilled(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow)})
	s := w.Chat("a", 100000)
	pid := w.Engine("a")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	endsWithError(t, s, "engine_crashed")
	kit.Becomes(t, "record of a", "", func() string { return w.Field("a", "state") })
	again := w.Chat("a", 100000)
	if now := w.Engine("a"); now == pid || now == 0 {
		t.Errorf("process %d after %d", now, pid)
	}
	again.Leave()
}

// endsWithError reads a stream that broke off: an error event is its last, and it does not look complete.
func endsWithError(t *testing.T, s *calls.Stream, code string) {
	t.Helper()
	events, err := s.Rest()
	if err != nil || len(events) == 0 {
		t.Fatalf("stream: %d events, %v", len(events), err)
	}
	if last := events[len(events)-1]; !strings.HasPrefix(last, `data: {"error":`) || !strings.Contains(last, strconv.Quote(code)) {
		t.Errorf("last event %q, want an error with %s", last, code)
	}
}

// The engines of a runner that is killed die with it; open requests hear of it; its successor gets the next request.
func TestRunnerKilled(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	models := calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "e": "embedding", "silent": "reranking, " + calls.Options("--hang infer")}
	s := testenv.Start(t, testenv.Spec{Redis: server, Models: calls.Catalogue(models).YAML(
		"hosts:\n  local: {driver: exec, devices: [cpu, npu], commands: {wake: [\"true\"], sleep: [\"true\"]}}\n")})
	w := &world{worlds.Of(t, models, s)}
	secret, err := os.ReadFile(filepath.Join(s.StateDir, "runner-secret"))
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	startRunner := func() *testenv.Program {
		runner, _ := testenv.StartRunner(t, "redis://"+server.Addr+"/0", strings.TrimSpace(string(secret)), "local", folder, "--devices=cpu,npu")
		return runner
	}
	runner := startRunner()
	w.Use("e")
	stream := w.Chat("a", 100000)
	silent, _ := w.Later("silent")
	kit.Becomes(t, "loaded", []string{"a", "e", "silent"}, w.Loaded)
	kit.Becomes(t, "calls of silent", 1, func() int { return w.stats("silent").InFlight })
	engines := testenv.Descendants(runner.PID())
	if len(engines) != 3 {
		t.Fatalf("engines: %v", engines)
	}
	runner.Kill()
	for _, e := range engines {
		kit.Becomes(t, fmt.Sprint("alive: ", e), false, e.Alive)
	}
	endsWithError(t, stream, "runner_failed")
	select {
	case a := <-silent:
		if a.Status != http.StatusBadGateway || a.Code() != "runner_failed" || a.Header.Get("Retry-After") == "" {
			t.Errorf("a request that was sent and not answered: %v", a)
		}
	case <-time.After(kit.Patience):
		t.Error("a request that was sent hears nothing of the runner's death")
	}
	successor := startRunner()
	began := time.Now()
	w.Use("e")
	t.Logf("served %v after the start of the runner's successor", time.Since(began))
	successor.Signal(syscall.SIGTERM)
	select {
	case <-successor.Exited():
	case <-time.After(kit.Patience):
		t.Error("the runner does not end")
	}
}

// Redis away: warm requests go on, cold ones are told to come again. Redis back and empty: everything recovers and
// nothing that was loaded is lost.
func TestRedisKilledAndBackEmpty(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	models := calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "e": "embedding", "cold": "reranking"}
	w := &world{worlds.StartOn(t, models, server)}
	w.Use("e")
	s := w.Chat("a", 100000)
	pids := func() []int { return []int{w.Engine("a"), w.Engine("e")} }
	before := pids()
	server.Kill()
	for range 20 {
		w.Use("e")
	}
	a := w.Ask("cold")
	after, err := strconv.Atoi(a.Header.Get("Retry-After"))
	if a.Status != http.StatusServiceUnavailable || a.Code() != "state_unavailable" || err != nil || after < 1 || after > 60 {
		t.Errorf("a cold request without Redis: %v, Retry-After %q", a, a.Header.Get("Retry-After"))
	}
	if resp := w.Get("/v1/health"); resp.Status != http.StatusOK {
		t.Errorf("health without Redis: %v", resp)
	}
	kit.Becomes(t, "/ready without Redis", http.StatusServiceUnavailable, func() int { return w.Get("/ready").Status })
	w.Use("e")

	server.Restart()
	kit.Becomes(t, "processes after Redis came back", before, pids)
	kit.Becomes(t, "a cold request after Redis came back", http.StatusOK, func() int { return w.Ask("cold").Status })
	w.Use("e")
	kit.Becomes(t, "/ready with Redis", http.StatusOK, func() int { return w.Get("/ready").Status })
	if now := pids(); !slices.Equal(now, before) {
		t.Errorf("processes %v, before %v", now, before)
	}
	if n := w.Spawns("a") + w.Spawns("e"); n != 2 {
		t.Errorf("%d loads of a and e, want 2", n)
	}
	if _, err := s.Next(); err != nil {
		t.Errorf("the open stream ended: %v", err)
	}
	s.Leave()
}

func TestFlushAll(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "b": "llm", "e": "embedding"})
	w.Use("e")
	s := w.Chat("a", 100000)
	waiting, _ := w.Later("b")
	kit.Becomes(t, "queue", []string{"b"}, w.Queued)
	pids := func() []int { return []int{w.Engine("a"), w.Engine("e")} }
	before := pids()
	if err := w.Rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	w.Use("e")
	kit.Becomes(t, "processes after FLUSHALL", before, pids)
	s.Leave()
	w.Await("the request that waited over FLUSHALL", waiting)
	kit.Becomes(t, "loaded", []string{"b", "e"}, w.Loaded)
	if n := w.Spawns("a") + w.Spawns("e"); n != 2 {
		t.Errorf("%d loads of a and e, want 2", n)
	}
}
