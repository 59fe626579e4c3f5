package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/infra/state"
)

func TestLoadedModelResponds(t *testing.T) {
	s := newStage(t).warm("chat")
	body := " {\"messages\":[{\"role\":\"user\",\"content\":\"h\\u0069\"}],\"model\" : \"chat\", \"stop\":[\"1.0e5\" ,null],\"seed\":2}\n"
	r := s.ask("POST", chatPath, body, "Content-Type: application/x-www-form-urlencoded")
	if r.status != 200 || r.text != `{"ok":true,"usage":{"prompt_tokens":3,"completion_tokens":4}}` {
		t.Fatalf("%d %s", r.status, r.text)
	}
	got := s.got()[0]
	if string(got.body) != body || got.path != chatPath || got.contentType != "application/json" || got.ticket != "" {
		t.Errorf("the engine got %+v", got)
	}
	for name, want := range map[string]string{
		"X-Model": "chat", "X-Model-State": "loaded", "X-Runner": "here", "X-Cold-Start": "", "X-Queue-Ms": "0", "X-Load-Ms": "0", "X-Queue-Length": "",
	} {
		if v := r.header.Get(name); v != want {
			t.Errorf("%s is %q, want %q", name, v, want)
		}
	}
	if !strings.HasPrefix(r.header.Get("Server-Timing"), "queue;dur=0, load;dur=0, ttft;dur=") {
		t.Errorf("Server-Timing: %s", r.header.Get("Server-Timing"))
	}
	s.until("the response was counted", func() bool { return s.stat("output_tokens") == 4 })
}

func TestAliasIsRewritten(t *testing.T) {
	s := newStage(t).warm("chat")
	if err := s.store.Set(t.Context(), state.Aliases, "late", "chat"); err != nil {
		t.Fatal(err)
	}
	s.until("the alias is known", func() bool { return s.server.registry.IsName("late") })
	for _, name := range []string{"nick", "chat:latest", "CHAT", "late", "late:latest", "LATE", "openai/late", "openai/late:latest", "LATE:latest"} {
		r := s.ask("POST", chatPath, `{"user":"\u00e9", "model":"`+name+`","messages":[{}],"model":"`+name+`"}`)
		got := s.got()
		if want := `{"user":"\u00e9", "model":"chat","messages":[{}]}`; r.status != 200 || string(got[len(got)-1].body) != want {
			t.Errorf("%s: %d %s", name, r.status, got[len(got)-1].body)
		}
	}
}

func TestForm(t *testing.T) {
	s := newStage(t).warm("ears")
	part := func(name, value string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	kind := "Content-Type: multipart/form-data; boundary=b"
	const named = `file"; filename="file` // without a file name, engines take it for a text
	want := part("model", "ears") + part(named, "RIFF") + "--b--\r\n"
	for i, name := range []string{named, "file"} {
		body := part("model", "ears") + part(name, "RIFF") + "--b--\r\n"
		if r := s.ask("POST", "/v1/audio/transcriptions", body, kind); r.status != 200 || string(s.got()[i].body) != want || s.got()[i].contentType != kind[14:] {
			t.Errorf("%d %s; the engine got %s", r.status, r.text, s.got()[i].body)
		}
	}
	s.serve(func(w http.ResponseWriter, _ *http.Request) { // as whisper-server answers to response_format=text
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "hello")
	})
	s.warm("whisper")
	for i, name := range []string{"ears", "whisper"} {
		body := "preamble\r\n" + part("model", name) + part(named, "RIFF") + "--b--\r\n"
		r := s.ask("POST", "/v1/audio/translations", body, kind)
		wantPath, want := "/v1/audio/translations", body
		if name == "whisper" {
			wantPath, want = "/v1/audio/transcriptions", part("translate", "true")+body[len("preamble\r\n"):]
		}
		if got := s.got()[2+i]; got.path != wantPath || string(got.body) != want {
			t.Errorf("%s: the engine got %s %s", name, got.path, got.body)
		}
		if kind := r.header.Get("Content-Type"); r.status != 200 || r.text != "hello" || kind != "text/plain; charset=utf-8" {
			t.Errorf("%s: %d %s %s", name, r.status, kind, r.text)
		}
	}
	for body, param := range map[string]string{
		part("model", "ears") + "--b--\r\n": "file", part("file", "x") + "--b--\r\n": "model", part("model", "nobody") + part("file", "x") + "--b--\r\n": "model",
	} {
		if r := s.ask("POST", "/v1/audio/transcriptions", body, kind); r.status < 400 || !strings.Contains(r.text, `"param":"`+param+`"`) {
			t.Errorf("%q: %d %s", body, r.status, r.text)
		}
	}
}

// sd-server takes the settings of an image from its prompt.
func TestImageSettings(t *testing.T) {
	s := newStage(t).warm("draw")
	for body, want := range map[string]string{
		`{"model":"draw","prompt":"a \"fox"}`: `"a \"fox"`,
		`{"model":"draw","prompt":"a","seed":7,"steps":4,"cfg_scale":1.5,"sample_method":"euler","negative_prompt":"</x>\n"}`: `"a <sd_cpp_extra_args>{\"negative_prompt\":\"</x>\\n\",\"sample_params\":{\"guidance\":{\"txt_cfg\":1.5},\"sample_method\":\"euler\",\"sample_steps\":4},\"seed\":7}</sd_cpp_extra_args>"`,
	} {
		r := s.ask("POST", "/v1/images/generations", body)
		got := string(s.got()[len(s.got())-1].body)
		if r.status != 200 || !strings.Contains(got, `"prompt":`+want) {
			t.Errorf("%d %s; the engine got %s", r.status, r.text, got)
		}
	}
	for body, param := range map[string]string{
		`"seed":1.5`: "seed", `"steps":"4"`: "steps", `"sample_method":1`: "sample_method", `"sample_method":"eular"`: "sample_method", `"scheduler":"x"`: "scheduler",
	} {
		if r := s.ask("POST", "/v1/images/generations", `{"model":"draw","prompt":"a",`+body+`}`); r.status != 400 || r.param() != param {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
	part := func(name, value string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	var picture bytes.Buffer
	if err := png.Encode(&picture, image.NewGray(image.Rect(0, 0, 8, 8))); err != nil {
		t.Fatal(err)
	}
	edit := func(fields string) reply {
		return s.ask("POST", "/v1/images/edits", part("model", "draw")+part("prompt", "a fox")+part(`image"; filename="i.png`, picture.String())+fields+"--b--\r\n", "Content-Type: multipart/form-data; boundary=b")
	}
	for fields, want := range map[string]string{
		"": "a fox",
		part("seed", "7") + part("steps", "4") + part("cfg_scale", "1.5"): `a fox <sd_cpp_extra_args>{"sample_params":{"guidance":{"txt_cfg":1.5},"sample_steps":4},"seed":7}</sd_cpp_extra_args>`,
	} {
		r := edit(fields)
		got := string(s.got()[len(s.got())-1].body)
		if r.status != 200 || strings.Count(got, `name="prompt"`) != 1 || !strings.Contains(got, "name=\"prompt\"\r\n\r\n"+want+"\r\n") {
			t.Errorf("%d %s; the engine got %s", r.status, r.text, got)
		}
	}
	for fields, param := range map[string]string{part("seed", "x"): "seed", part("steps", "1.5"): "steps", part("sample_method", "eular"): "sample_method"} {
		if r := edit(fields); r.status != 400 || r.param() != param {
			t.Errorf("%s: %d %s", fields, r.status, r.text)
		}
	}
}

func TestColdModelIsLoaded(t *testing.T) {
	s := newStage(t)
	together := make(chan struct{})
	s.loading(func(string) state.Outcome {
		<-together
		return state.Outcome{Fields: map[string]string{"cold": "1", "load_ms": "7", "evicted": "old,older"}}
	})
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			r := s.ask("POST", chatPath, chatBody)
			if r.status != 200 || r.header.Get("X-Cold-Start") != "1" || r.header.Get("X-Load-Ms") == "" || r.header.Get("X-Evicted") != "old,older" || r.header.Get("X-Queue-Length") == "" {
				t.Errorf("%d %v %s", r.status, r.header, r.text)
			}
		})
	}
	s.until("all wait", func() bool { return s.gate.Waiting()["chat"] == 6 })
	close(together)
	all.Wait()
	if s.loads["chat"] != 1 || s.got()[0].ticket == "" {
		t.Errorf("%v loads, ticket %q", s.loads, s.got()[0].ticket)
	}
}

func TestLoadFails(t *testing.T) {
	s := newStage(t).loading(func(string) state.Outcome {
		return state.Outcome{Failed: true, Fields: map[string]string{"code": "model_file_not_found", "message": "The file is missing."}}
	})
	for _, body := range []string{chatBody, chatLive} { // a stream that is not committed has its true status
		r := s.ask("POST", chatPath, body)
		if r.status != 404 || r.code() != "model_file_not_found" || r.header.Get("x-should-retry") != "false" || r.header.Get("X-Model") != "chat" {
			t.Errorf("%d %v %s", r.status, r.header, r.text)
		}
	}
}

func TestWaitTimeouts(t *testing.T) {
	s := newStage(t)
	release := make(chan struct{})
	s.loading(func(string) state.Outcome { <-release; return state.Outcome{} })
	for _, head := range []string{"x-wait-timeout: 0", "x-wait-timeout: 0.05", "x-cold-wait: fail"} {
		r := s.ask("POST", chatPath, chatBody, head)
		if r.status != 503 || r.code() != "model_loading" && r.code() != "model_busy" || r.header.Get("Retry-After") == "" || r.header.Get("x-queue-length") == "" || r.header.Get("X-Model-State") == "loaded" {
			t.Errorf("%s: %d %v %s", head, r.status, r.header, r.text)
		}
		if r := s.ask("POST", "/api/generate", `{"model":"chat"}`, head); r.status != 503 {
			t.Errorf("a load alone, %s: %d %s", head, r.status, r.text)
		}
	}
	s.warm("spare")
	if r := s.ask("POST", chatPath, chatBody, "x-cold-wait: fallback"); r.status != 200 || r.header.Get("X-Model") != "spare" || !strings.Contains(string(s.got()[0].body), `"spare"`) {
		t.Errorf("fallback: %d %v", r.status, r.header)
	}
	s.warm("llama")
	schema := `{"model":"same","messages":[{}],"max_tokens":1,"output_config":{"format":{"type":"json_schema","schema":{}}}}`
	if r := s.ask("POST", "/v1/messages", schema, "x-cold-wait: fallback"); r.status != 400 {
		t.Errorf("a body that the fallback does not take: %d %s", r.status, r.text)
	}
	if r := s.ask("POST", "/v1/messages", `{"model":"chat","messages":[{}],"max_tokens":1}`, "x-wait-timeout: 0"); r.status != 529 {
		t.Errorf("Anthropic: %d %s", r.status, r.text)
	}
	close(release)
	s.until("loaded in the end", func() bool { _, ok := s.gate.Endpoint("chat"); return ok })
	if r := s.ask("POST", chatPath, chatBody, "x-cold-wait: fail", "x-wait-timeout: 0"); r.status != 200 {
		t.Errorf("a warm model waits for nothing: %d %s", r.status, r.text)
	}
}

// Behind a proxy with an idle timeout, a request without a stream gets its error earlier. A stream sends comments, so
// it waits.
func TestHoldWhole(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.HoldWhole = 50 * time.Millisecond })
	release := make(chan struct{})
	s.loading(func(string) state.Outcome { <-release; return state.Outcome{} })
	if r := s.ask("POST", chatPath, chatBody); r.status != 503 || r.code() != "model_loading" || r.header.Get("Retry-After") == "" {
		t.Errorf("no stream: %d %v %s", r.status, r.header, r.text)
	}
	time.AfterFunc(time.Second, func() { close(release) })
	if r := s.ask("POST", chatPath, chatLive); r.status != 200 {
		t.Errorf("a stream: %d %s", r.status, r.text)
	}
}

func TestQueueFull(t *testing.T) {
	s := newStage(t)
	release := make(chan struct{})
	s.loading(func(string) state.Outcome { <-release; return state.Outcome{} })
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if r := s.ask("POST", chatPath, chatBody); r.status != 200 {
				t.Errorf("%d %s", r.status, r.text)
			}
		})
	}
	s.until("eight wait", func() bool { return s.gate.Waiting()["chat"] == 8 })
	if r := s.ask("POST", chatPath, chatBody); r.status != 429 || r.code() != "queue_full" || r.header.Get("x-queue-length") != "8" {
		t.Errorf("%d %v %s", r.status, r.header, r.text)
	}
	close(release)
	all.Wait()
}

// refuseThrice is a runner that refuses the first three requests and serves all others; tries counts them.
func refuseThrice(reason string, tries *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) <= 3 {
			refuse(reason)(w, r)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}
}

// TestRefusalLeadsToALoad: the mirror showed a model as loaded that its runner had unloaded.
func TestRefusalLeadsToALoad(t *testing.T) {
	s := newStage(t).warm("chat")
	s.serve(refuseThrice(rpc.RefusedNotLoaded, new(atomic.Int32)))
	if r := s.ask("POST", chatPath, chatBody); r.status != 200 || s.loads["chat"] == 0 {
		t.Errorf("%d %s, loads %v", r.status, r.text, s.loads)
	}
}

// TestSentBack: a request that a runner sends back goes to the least loaded copy at once, without a load. One that is
// sent back without end is a refused one.
func TestSentBack(t *testing.T) {
	s := newStage(t).warm("chat")
	var tries atomic.Int32
	s.serve(refuseThrice(rpc.RefusedSentBack, &tries))
	if r := s.ask("POST", chatPath, chatBody); r.status != 200 || s.loads["chat"] != 0 || tries.Load() != 4 {
		t.Errorf("%d %s after %d tries, loads %v", r.status, r.text, tries.Load(), s.loads)
	}
	s.serve(refuse(rpc.RefusedSentBack))
	if r := s.ask("POST", chatPath, chatBody, "x-wait-timeout: 1"); r.status != 503 {
		t.Errorf("%d %s", r.status, r.text)
	}
}

// TestRefusalsUntilTheTimeout: endless refusals are bounded by the wait and do not flood the runner.
func TestRefusalsUntilTheTimeout(t *testing.T) {
	s := newStage(t).warm("chat").serve(refuse(rpc.RefusedNotLoaded))
	began := time.Now()
	r := s.ask("POST", chatPath, chatBody, "x-wait-timeout: 1.2")
	if r.status != 503 || r.code() != "model_loading" && r.code() != "model_busy" { // between two loads none is in progress
		t.Errorf("%d %s", r.status, r.text)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	if n := len(s.got()); n < 3 || n > 12 {
		t.Errorf("%d tries in 1.2 s", n)
	}
}

func TestRunnerGone(t *testing.T) {
	s := newStage(t).warm("chat")
	s.runner.Close()
	if r := s.ask("POST", chatPath, chatBody, "x-wait-timeout: 0.3"); r.status != 503 || !slices.Contains([]string{"host_unreachable", "model_loading", "model_busy"}, r.code()) {
		t.Errorf("%d %s", r.status, r.text)
	}
}

// TestClockSkewIsCorrected: a clock that is ten minutes off, in either direction, costs the first request one refusal
// and nothing else.
func TestClockSkewIsCorrected(t *testing.T) {
	s := newStage(t).warm("chat")
	for _, off := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		s.server.cfg.Signer.Correct("here", time.Now().Add(off).UnixMilli())
		s.denied = 0
		for range 3 {
			if r := s.ask("POST", chatPath, chatBody); r.status != 200 || len(s.loads) != 0 || s.denied != 1 {
				t.Errorf("%v off: %d %s after %d refusals, want 1", off, r.status, r.text, s.denied)
			}
		}
	}
	s.verify = rpc.NewVerifier([]byte("another secret, of another pool"))
	if r := s.ask("POST", chatPath, chatBody); r.status != 500 || r.code() != "internal_error" {
		t.Errorf("%d %s", r.status, r.text)
	}
}

// TestRedirects: an engine's redirect or web page is a bad reply, and its target is not revealed.
func TestRedirects(t *testing.T) {
	s := newStage(t).warm("chat")
	for _, c := range []struct {
		status   int
		location string
		kind     string
	}{{307, "http://attacker/steal", "application/json"}, {301, "/x", "text/plain"}, {304, "", ""}, {200, "", "TEXT/HTML; charset=utf-8"}, {200, "", "image/svg+xml"}} {
		s.serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", c.location)
			w.Header().Set("Content-Type", c.kind)
			w.WriteHeader(c.status)
		})
		if r := s.ask("POST", chatPath, chatBody); r.status != 502 || r.code() != "bad_engine_reply" || r.header.Get("Location") != "" || strings.Contains(r.text, "attacker") {
			t.Errorf("%v: %d %v %s", c, r.status, r.header, r.text)
		}
	}
}

func TestEngineErrors(t *testing.T) {
	s := newStage(t).warm("chat")
	for _, c := range []struct {
		status     int
		code, body string
		want       int
		wantCode   string
	}{
		{400, "", `{"error":{"message":"bad thing","type":"x","code":400}}`, 400, "invalid_request"},
		{500, "", `{"error":{"message":"the request exceeds the available context size"}}`, 400, "context_length_exceeded"},
		{502, "engine_crashed", `{"error":{"message":"The engine ended."}}`, 502, "engine_crashed"},
		{504, "upstream_timeout", `{}`, 504, "upstream_timeout"},
		{404, "", `not there`, 404, ""},
	} {
		s.serve(func(w http.ResponseWriter, _ *http.Request) {
			if c.code != "" {
				w.Header().Set(rpc.HeaderCode, c.code)
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		if r := s.ask("POST", chatPath, chatBody); r.status != c.want || r.code() != c.wantCode || r.header.Get("X-Model") != "chat" {
			t.Errorf("%d %s: %d %s", c.status, c.body, r.status, r.text)
		}
	}
	s.serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>It works!</html>") })
	if r := s.ask("POST", chatPath, chatBody); r.status != 502 || r.code() != "bad_engine_reply" {
		t.Errorf("a web page: %d %s", r.status, r.text)
	}
	s.serve(func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
	if r := s.ask("POST", chatPath, chatBody); r.status != 502 || r.code() != "runner_failed" || len(s.got()) != 8 { // one was repeated because its engine crashed

		t.Errorf("broken before the response: %d %s after %d tries", r.status, r.text, len(s.got()))
	}
	s.serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"half":`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	if r := s.ask("POST", chatPath, chatBody); !strings.HasSuffix(r.text, "BROKEN") {
		t.Errorf("a body that broke off looks whole: %s", r.text)
	}
}

func TestSilentRunner(t *testing.T) {
	stop := make(chan struct{})
	s := newStage(t, func(_ *stage, c *Config) { c.FirstByte = 100 * time.Millisecond }).warm("chat")
	s.serve(func(http.ResponseWriter, *http.Request) { <-stop })
	defer close(stop)
	for _, body := range []string{chatBody, chatLive} {
		if r := s.ask("POST", chatPath, body); r.status != 504 || r.code() != "upstream_timeout" {
			t.Errorf("%d %s", r.status, r.text)
		}
	}
}

func TestBufferedBytesAreLimited(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.MaxBufferedBytes = 300_000 }).warm("spare")
	release := make(chan struct{})
	s.loading(func(string) state.Outcome { <-release; return state.Outcome{} })
	big := strings.Replace(chatBody, "hi", strings.Repeat("x ", 100_000), 1)
	done := make(chan reply, 1)
	go func() { done <- s.ask("POST", chatPath, big) }()
	s.until("it waits", func() bool { return s.gate.Waiting()["chat"] == 1 })
	if r := s.ask("POST", chatPath, strings.Replace(big, `"chat"`, `"spare"`, 1)); r.status != 503 || r.code() != "overloaded" {
		t.Errorf("over the budget: %d %s", r.status, r.text)
	}
	if r := s.ask("POST", chatPath, strings.Replace(chatBody, `"chat"`, `"spare"`, 1)); r.status != 200 {
		t.Errorf("within the budget: %d", r.status)
	}
	close(release)
	if r := <-done; r.status != 200 {
		t.Errorf("%d %s", r.status, r.text)
	}
	if r := s.ask("POST", chatPath, strings.Replace(big, `"chat"`, `"nick"`, 1)); r.code() != "overloaded" {
		t.Errorf("with a body that is written again: %d %s", r.status, r.text)
	}
	s.serve(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"`+strings.Repeat("x", 400_000)+`"}}]}`)
	})
	if r := s.ask("POST", "/api/chat", `{"model":"spare","messages":[{"role":"user","content":"hi"}],"stream":false}`); r.status != 503 {
		t.Errorf("a response over the budget: %d %s", r.status, r.text[:min(len(r.text), 200)])
	}
	s.until("all is released", func() bool { return s.server.bodies.Buffered() == 0 })
}

// A translated response counts as held until it is written, which its client can delay.
func TestJSONResponsesAreBuffered(t *testing.T) {
	s := newStage(t).warm("spare")
	const size = 32 << 20 // more than sockets take
	s.serve(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"`+strings.Repeat("x", size)+`"}}]}`)
	})
	resp := s.open(t.Context(), "POST", "/api/chat", `{"model":"spare","messages":[{"role":"user","content":"hi"}],"stream":false}`)
	if held := s.server.bodies.Buffered(); held < size {
		t.Errorf("%d bytes held", held)
	}
	if r := s.read(resp); r.status != 200 || len(r.text) < size {
		t.Errorf("%d, %d bytes", r.status, len(r.text))
	}
	s.until("all is released", func() bool { return s.server.bodies.Buffered() == 0 })
}

func TestDrain(t *testing.T) {
	s := newStage(t).warm("chat")
	entered, release := make(chan struct{}), make(chan struct{})
	s.serve(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		_, _ = io.WriteString(w, "{}")
	})
	done := make(chan reply, 1)
	go func() { done <- s.ask("POST", chatPath, chatBody) }()
	<-entered
	s.server.Drain()
	if r := s.ask("POST", chatPath, chatBody); r.status != 503 || r.code() != "draining" {
		t.Errorf("%d %s", r.status, r.text)
	}
	if r := s.ask("GET", "/ready", ""); r.status != 503 {
		t.Errorf("/ready %d", r.status)
	}
	close(release)
	if r := <-done; r.status != 200 {
		t.Errorf("an open request: %d", r.status)
	}
}

// TestShutdownCuts: the shutdown cuts streams that outlast their time, with an error event.
func TestShutdownCuts(t *testing.T) {
	s := newStage(t).warm("chat").serve(sse("data: {\"one\":1}\n\n", pause))
	resp := s.open(t.Context(), "POST", chatPath, chatLive)
	defer resp.Body.Close()
	readUntil(t, resp.Body, "one")
	end, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := s.server.Shutdown(end); err == nil {
		t.Error("it says that all requests ended")
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), `"code":"draining"`) || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("%v %q", err, rest)
	}
}

// TestClientLeaves: a client leaves in every phase of a request. The cleanup of the stage checks that nothing is left.
func TestClientLeaves(t *testing.T) {
	committed := func(s *stage) bool { return s.server.m.responses.counter(responseKey{"chat", 200}).Get() == 1 }
	cases := map[string]struct {
		warm, live bool
		engine     http.HandlerFunc
		at         func(s *stage) bool
	}{
		"queued":           {at: func(s *stage) bool { return s.gate.Waiting()["chat"] == 1 }},
		"queued stream":    {live: true, at: committed},
		"before the head":  {warm: true, engine: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, at: func(s *stage) bool { return len(s.got()) == 1 }},
		"prefill":          {warm: true, live: true, engine: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, at: committed},
		"in a silent SSE":  {warm: true, live: true, engine: sse("data: 1\n\n", pause), at: committed},
		"between refusals": {warm: true, engine: refuse(rpc.RefusedNotLoaded), at: func(s *stage) bool { return len(s.got()) > 3 }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, func(_ *stage, c *Config) { c.CommitAfter = 30 * time.Millisecond; c.Keepalive = time.Minute })
			stuck := make(chan struct{})
			t.Cleanup(func() { close(stuck) })
			s.loading(func(string) state.Outcome { <-stuck; return state.Outcome{Failed: true} })
			if c.engine != nil {
				s.serve(c.engine)
			}
			if name == "between refusals" {
				s.loading(func(string) state.Outcome { return state.Outcome{} })
			}
			if c.warm {
				s.warm("chat")
			}
			conn := s.dial()
			body := chatBody
			if c.live {
				body = chatLive
			}
			if _, err := io.WriteString(conn.c, post(chatPath, body)); err != nil {
				t.Fatal(err)
			}
			s.until("the phase", func() bool { return c.at(s) })
			_ = conn.c.Close()
			s.settled()
			if n := s.server.m.responses.counter(responseKey{"chat", 499}).Get(); !c.live && n != 1 {
				t.Errorf("counted as left: %d", n)
			}
		})
	}
}

func TestLargeBodyIsNotKept(t *testing.T) {
	s := newStage(t).warm("chat")
	c := s.dial()
	big := strings.Replace(chatBody, "hi", strings.Repeat("x ", 1<<19), 1)
	if r := c.say(post(chatPath, big)); r.status != 200 || len(s.got()[0].body) != len(big) {
		t.Fatalf("%d", r.status)
	}
	if r := c.say(post(chatPath, chatBody)); r.status != 200 || string(s.got()[1].body) != chatBody {
		t.Fatalf("the next request on the connection: %d %s", r.status, r.text)
	}
}

func TestDefaultModel(t *testing.T) {
	s := newStage(t).warm("vec").serve(answering(`{"data":[{"embedding":[1]}]}`))
	if r := s.ask("POST", "/v1/embeddings", `{"input":"x"}`); r.status != 200 || r.header.Get("X-Model") != "vec" {
		t.Errorf("%d %s", r.status, r.text)
	}
	var got map[string]any
	if err := json.Unmarshal(s.got()[0].body, &got); err != nil || got["model"] != "vec" {
		t.Errorf("%s", s.got()[0].body)
	}
}

// A response without a stream where the client's dialect needs one is closed, not only refused.
func TestResponsesWithoutStreamAreClosed(t *testing.T) {
	s := newStage(t).warm("chat") // its engine responds with JSON
	for path, body := range map[string]string{
		"/api/chat":     `{"model":"chat","messages":[{"role":"user","content":"hi"}]}`,
		"/v1/responses": `{"model":"chat","input":"hi","stream":true}`,
	} {
		if r := s.ask("POST", path, body); r.status != 502 {
			t.Errorf("%s: %d %s", path, r.status, r.text)
		}
	}
	if n := s.server.registry.Client(s.runner.Listener.Addr().String(), "").Stats().Active; n != 0 {
		t.Errorf("%d responses are open after all requests ended", n)
	}
}

// An engine's own status 421 is not a runner's refusal: the request is not repeated.
func TestEnginesStatusIsNoRefusal(t *testing.T) {
	s := newStage(t).warm("chat").serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(421) })
	if r := s.ask("POST", chatPath, chatBody, "x-wait-timeout: 3"); len(s.got()) != 1 {
		t.Errorf("sent %d times: %d %s", len(s.got()), r.status, r.text)
	}
}

// TestRequestsWithoutTheModel: an engine that knows its model by its path alone gets requests that do not name it.
func TestRequestsWithoutTheModel(t *testing.T) {
	s := newStage(t).warm("unnamed", "chat")
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":%q,"messages":[{"role":"user","content":"hi"}]}`,
		"/v1/completions":      `{"prompt":"hi","model":%q}`,
		"/api/chat":            `{"model":%q,"stream":false,"messages":[{"role":"user","content":"hi"}]}`,
	} {
		for model, want := range map[string]bool{"unnamed": false, "chat": true} {
			s.ask("POST", path, fmt.Sprintf(body, model))
			seen := s.got()
			if got := seen[len(seen)-1].body; bytes.Contains(got, []byte(`"model"`)) != want || !bytes.Contains(got, []byte(`"hi"`)) {
				t.Errorf("%s of %s: the engine got %s, with model %v", path, model, got, want)
			}
		}
	}
}
