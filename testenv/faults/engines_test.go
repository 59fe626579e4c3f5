package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// Row 9: an engine dies under a request that has no byte yet: it is loaded again and gets the request again, once. Only its
// own requests fail. Its place is free at once for a load that is queued.
func TestRow09EngineKilled(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"silent": "embedding, " + calls.Options("--hang infer"), "a": "llm, " + calls.Options(worlds.Slow), "b": "llm", "e": "reranking"})
	w.Use("e")
	s := w.Chat("a", 100000)
	held := worlds.Later(func() calls.Answer { return w.Ask("silent") })
	kit.Becomes(t, "loaded", []string{"a", "e", "silent"}, w.Loaded)
	kit.Becomes(t, "requests of silent", "1", func() string { return w.Field("silent", "in_flight") })
	first := w.Engine("silent")
	kill(t, first)
	kit.Becomes(t, "the request is at another engine", true, func() bool {
		now := w.Engine("silent")
		return now != 0 && now != first && w.Field("silent", "in_flight") == "1"
	})
	kill(t, w.Engine("silent"))
	calm{status: 502, typ: "server_error", code: "engine_crashed", retry: 1}.must(t, "a request without an answer", worlds.Await(t, "held", held))
	kit.Becomes(t, "loaded", []string{"a", "e"}, w.Loaded)
	if _, err := s.Next(); err != nil {
		t.Errorf("another model's stream: %v", err)
	}
	w.Use("e")
	queued := worlds.Later(func() calls.Answer { return w.Ask("b") })
	kit.Becomes(t, "queue", 1, w.queued)
	kill(t, w.Engine("a"))
	last, err := s.Last()
	endsWith(t, "stream", last, err, "engine_crashed")
	if a := worlds.Await(t, "queued", queued); !a.OK() {
		t.Errorf("a request that was queued behind the engine: %v", a)
	}
	kit.Becomes(t, "loaded", []string{"b", "e"}, w.Loaded)
	w.Chat("a", 100000).Leave()
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid == 0 {
		t.Fatal("no process to kill")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// Row 10: an engine that hangs at its load is stopped, though it does not listen to SIGTERM, and its clients are told.
func TestRow10EngineHangsAtLoad(t *testing.T) {
	t.Parallel()
	for name, recipe := range map[string]string{
		"no progress": "recipes:\n  standin: {stall_timeout: 1s, stop_grace: 300ms}\n",
		"in all":      "recipes:\n  standin: {load_timeout: 1s, stop_grace: 300ms}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			models := calls.Catalogue{"hung": "llm, " + calls.Options("--hang load --ignore-sigterm"), "e": "embedding"}
			w := &world{worlds.Of(t, models, testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost + recipe), Redis: testenv.StartRedis(t)}))}
			w.Use("e")
			a := w.Ask("hung")
			calm{status: 504, typ: "timeout_error", code: "load_timeout", retry: 30}.must(t, "a load that hangs", a)
			if n := w.Spawns("hung"); n != 1 {
				t.Errorf("%d starts, want 1", n)
			}
			kit.Becomes(t, "engines", 1, func() int { return engines(w.System) }) // that of e: more room would not help the other
		})
	}
}

// engines counts the engine processes of a system.
func engines(sys *testenv.System) int {
	n := 0
	for _, p := range sys.Processes() {
		if name := filepath.Base(strings.Fields(p.Args + " -")[0]); name == "standin" || name == "llama-server" {
			n++
		}
	}
	return n
}

// Row 11: an engine lives, says that it is well, and does not infer. The request fails in time, the engine does not answer
// a probe either and is ended, and the next request has the model loaded again. Others go on.
func TestRow11EngineDoesNotInfer(t *testing.T) {
	t.Parallel()
	const hung = "--hang infer --ignore-sigterm"
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options(hung), "e": "embedding, " + calls.Options(hung), "r": "reranking"}, "--first-byte=600ms")
	w.Use("r")
	late := calm{status: 504, typ: "timeout_error", code: "upstream_timeout", retry: 5}
	for i, ask := range []func() calls.Answer{
		func() calls.Answer { return calls.Chat(t.Context(), w.Client, w.URL, "a", 4, true) },
		func() calls.Answer { return w.Ask("e") },
	} {
		late.must(t, fmt.Sprintf("request %d", i), ask())
		kit.Becomes(t, "loaded, without the silent engine", []string{"r"}, w.Loaded)
	}
	w.Use("r")
	if n := w.Spawns("a") + w.Spawns("e") + w.Spawns("r"); n != 3 {
		t.Errorf("%d starts, want 3", n)
	}
}

// Row 12: an engine that answers with something that is no response. A page is told with a status. Broken framing ends
// a stream with an error event and cuts other answers; the third time in a minute the engine is restarted. A line over
// 16 MiB ends a stream.
func TestRow12Garbage(t *testing.T) {
	t.Parallel()
	models := calls.Catalogue{}
	for _, kind := range []string{"framing", "content-type", "line"} {
		models[kind] = "llm, " + calls.Options("--garbage "+kind)
	}
	w := start(t, models, "--max-loaded-models=-1")
	bad := calm{status: 502, typ: "server_error", code: "bad_engine_reply"}
	ask := func(kind string, stream bool) calls.Answer {
		return calls.Chat(t.Context(), w.Client, w.URL, kind, 4, stream)
	}
	for _, stream := range []bool{false, true} {
		bad.must(t, "content-type", ask("content-type", stream))
	}
	a := ask("line", true)
	endsWith(t, "line, stream", a.LastEvent(), a.Err, "invalid_request")

	bad.must(t, "framing", ask("framing", false))
	pid := w.Engine("framing")
	time.Sleep(time.Second) // answers within a second count once
	a = ask("framing", true)
	endsWith(t, "framing, stream", a.LastEvent(), a.Err, "bad_engine_reply")
	if n := w.Spawns("framing"); n != 1 || pid == 0 {
		t.Errorf("%d starts before the third bad answer, pid %d", n, pid)
	}
	time.Sleep(time.Second)
	bad.must(t, "framing, the third time", ask("framing", false))
	kit.Becomes(t, "the engine is gone", true, func() bool { return w.Engine("framing") != pid })
	bad.must(t, "framing, restarted", ask("framing", false))
	for kind, want := range map[string]int{"framing": 2, "content-type": 1, "line": 1} {
		if n := w.Spawns(kind); n != want {
			t.Errorf("%s: %d starts, want %d", kind, n, want)
		}
	}
}

// Row 13: what an engine says against a request goes on with its status, in our form; so does its own trouble, by its
// cause. A stream that is committed ends with it. The engine is none the worse for it.
func TestRow13EngineErrors(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options("--load-time 1s"), "full": "embedding, " + calls.Options("--oom-over 1")}, "--commit-after=100ms")
	wrong := func(stream bool) calls.Answer {
		body := fmt.Sprintf(`{"model":"a","stream":%v,"max_tokens":1.5,"messages":[{"role":"user","content":"hi"}]}`, stream)
		return calls.Post(t.Context(), w.Client, w.URL+"/v1/chat/completions", body)
	}
	a := wrong(true)
	last := a.LastEvent()
	if a.Status != 200 || a.Err != nil || !strings.HasPrefix(last, `data: {"error":`) || !strings.Contains(last, `"type":"invalid_request_error"`) || !strings.Contains(last, "max_tokens") {
		t.Errorf("a committed stream: %v", a)
	}
	pid := w.Engine("a")
	refused := calm{status: 400, typ: "invalid_request_error", code: "invalid_request", final: true}
	refused.must(t, "refused by the engine", wrong(false))
	refused.must(t, "refused by the engine, a stream", wrong(true))
	calm{status: 503, typ: "server_error", code: "engine_out_of_memory", retry: 30}.must(t, "out of memory", calls.Post(t.Context(), w.Client, w.URL+"/v1/embeddings", `{"model":"full","input":"more than one word"}`))
	w.Use("a")
	if now := w.Engine("a"); now != pid || w.Spawns("full") != 1 {
		t.Errorf("a's process %d became %d, %d starts of full", pid, now, w.Spawns("full"))
	}
}

// Row 22: two models want the one slot all the time. Both are served, by turns whose number is bounded and exported.
func TestRow22PingPong(t *testing.T) {
	t.Parallel()
	const turn, lasts = 500 * time.Millisecond, 6 * time.Second
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options("--token-delay 2ms"), "b": "llm, " + calls.Options("--token-delay 2ms")},
		"--fair-after="+turn.String())
	var served [2]atomic.Int64
	var failed sync.Map
	var traffic sync.WaitGroup
	began := time.Now()
	for client := range 8 {
		traffic.Go(func() {
			for model := client % 2; time.Since(began) < lasts; {
				if a := w.Ask(string(rune('a' + model))); a.OK() {
					served[model].Add(1)
				} else {
					failed.Store(a.String(), true)
				}
			}
		})
	}
	traffic.Wait()
	failed.Range(func(a, _ any) bool { t.Errorf("%v", a); return true })
	took := time.Since(began)
	swaps := w.Spawns("a") + w.Spawns("b")
	t.Logf("in %v: a %d, b %d requests, %d loads", took, served[0].Load(), served[1].Load(), swaps)
	if min(served[0].Load(), served[1].Load()) < int64(took/turn)/4 {
		t.Error("one of the two makes no progress")
	}
	if all := served[0].Load() + served[1].Load(); int64(swaps) > all/2 {
		t.Errorf("%d loads for %d requests: those that wait together are not served together", swaps, all)
	}
	var stats struct {
		Evictions int `json:"evictions_total"`
	}
	a := calls.Get(t.Context(), w.Client, w.URL+"/v1/stats")
	if err := json.Unmarshal(a.Body, &stats); err != nil || stats.Evictions < swaps-2 || stats.Evictions > swaps {
		t.Errorf("evictions_total is %d after %d loads: %v", stats.Evictions, swaps, a)
	}
	a = calls.Get(t.Context(), w.Client, w.URL+"/metrics")
	var inAll int
	for line := range strings.Lines(string(a.Body)) {
		_, _ = fmt.Sscanf(line, "reveille_gateway_swaps_total %d", &inAll)
	}
	if inAll < swaps/2 || inAll > swaps {
		t.Errorf("%d swaps after %d loads", inAll, swaps)
	}
}

// Row 23: the model that has to go is never idle. Whoever cannot wait for it is told so, and nothing is stuck.
func TestRow23VictimNeverIdle(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "b": "llm"}, "--fair-after=200ms")
	s := w.Chat("a", 100000)
	pid := w.Engine("a")
	a := w.AskFor("b", 2)
	calm{status: 503, typ: "server_error", code: "model_busy", retry: 10}.must(t, "the newcomer", a)
	if now := w.Engine("a"); now != pid {
		t.Errorf("a's process %d became %d", pid, now)
	}
	if _, err := s.Next(); err != nil {
		t.Errorf("the stream: %v", err)
	}
	s.Leave()
	w.Use("b")
	kit.Becomes(t, "queue", 0, w.queued)
}

// Row 28: a model file that is broken. No engine gets to see it; the host is cleared for it once, and not for every request
// or under every name that the same bytes have.
func TestRow28CorruptFile(t *testing.T) {
	t.Parallel()
	testenv.Engines(t)
	whole, err := os.ReadFile(testenv.Models(t).MiniLM)
	if err != nil {
		t.Fatal(err)
	}
	cut := whole[:len(whole)/3] // the header is in order, tensors are missing
	noise := append([]byte("GGUF\x03\x00\x00\x00"), []byte(strings.Repeat("\xff\xfe\xfd\xfc", 4096))...)
	models := calls.Catalogue{"e": "llm"}
	for name, text := range map[string][]byte{"cut": cut, "cut-twin": cut, "noise": noise, "empty": {}} {
		file := filepath.Join(t.TempDir(), name+".gguf")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		models[name] = fmt.Sprintf("embedding, recipe: llamacpp, checkpoint: %q", file)
	}
	w := start(t, models)
	corrupt := calm{status: 500, typ: "server_error", code: "model_load_error", final: true}
	ask := func(name string) {
		t.Helper()
		a := w.Ask(name)
		corrupt.must(t, name, a)
		if text := a.Error().Message; !strings.HasPrefix(text, "model file is corrupt: "+name+".gguf: ") {
			t.Errorf("%s: message %q", name, text)
		}
	}
	for _, name := range []string{"noise", "empty", "cut"} {
		w.Use("e")
		ask(name)
		if names := w.Loaded(); !slices.Contains(names, "e") {
			t.Errorf("%s: %v are loaded, want e: a damaged file clears nothing", name, names)
		}
	}
	w.Use("e")
	pid := w.Engine("e")
	ask("cut-twin")
	for _, name := range []string{"noise", "empty", "cut"} {
		if a := w.Ask(name); a.Status != 500 && a.Code() != "model_backoff" {
			t.Errorf("%s again: %v", name, a)
		}
		if n := w.Spawns(name); n != 0 {
			t.Errorf("%s: %d engines were started for it", name, n)
		}
	}
	if now := w.Engine("e"); now != pid {
		t.Errorf("e's process %d became %d: the host was cleared again", pid, now)
	}
}
