package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"reveille/gateway/api"

	"reveille/infra/state"
)

// objects returns the lines of an NDJSON body.
func objects(t *testing.T, r reply) (out []map[string]any) {
	t.Helper()
	if got := r.header.Get("Content-Type"); got != api.Ollama.StreamType() {
		t.Errorf("content type %q", got)
	}
	for line := range strings.Lines(r.text) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}

func content(m map[string]any) string {
	message, _ := m["message"].(map[string]any)
	text, _ := message["content"].(string)
	return text
}

// A chat in Ollama's format says what the same chat in OpenAI's says, whole and in lines.
func TestOllamaChat(t *testing.T) {
	p := newPool(t, "1")
	openAI := p.want(200, p.chat("one"))
	want := openAI.list("choices")[0]["message"].(map[string]any)["content"]
	const body = `{"model":"uno:latest","messages":[{"role":"user","content":"hi"}]`
	r := p.want(200, p.post("/api/chat", body+`,"stream":false}`))
	if r.json["model"] != "uno:latest" || r.json["done"] != true || content(r.json) != want || r.json["eval_count"] == 0.0 || r.header.Get("X-Model") != "one" {
		t.Errorf("%s", r.text)
	}
	said := ""
	list := objects(t, p.want(200, p.post("/api/chat", body+`}`)))
	for i, m := range list {
		if said += content(m); m["done"] != (i == len(list)-1) || m["model"] != "uno:latest" {
			t.Errorf("line %d: %v", i, m)
		}
	}
	if last := list[len(list)-1]; said != want || last["eval_count"] != r.json["eval_count"] || last["done_reason"] != r.json["done_reason"] {
		t.Errorf("%q, want %q, ended with %v", said, want, last)
	}
	r = p.want(200, p.post("/api/generate", `{"model":"one","prompt":"hi","stream":false}`))
	if r.json["response"] != want {
		t.Errorf("%s, want %q", r.text, want)
	}
	if u := p.get("/v1/stats").text; !strings.Contains(u, `"input_tokens":`) {
		t.Errorf("stats: %s", u)
	}
}

// An empty request loads with the context size it asks for; keep_alive sets the idle time, and 0 unloads.
func TestOllamaKeepAlive(t *testing.T) {
	p := newPool(t, "1")
	r := p.want(200, p.post("/api/generate", `{"model":"two","stream":false,"keep_alive":"7m","options":{"num_ctx":1024}}`))
	if r.json["done_reason"] != "load" || r.json["response"] != "" {
		t.Errorf("%s", r.text)
	}
	record := func() *state.ModelRecord { return p.mirror.Snapshot().Hosts["here"].Models["two"] }
	p.until("the mirror has the model loaded", func() bool { m := record(); return m != nil && m.State == "loaded" })
	if m := record(); m == nil || !strings.Contains(p.get("/v1/health").text, "1024") {
		t.Errorf("%+v, %s", m, p.get("/v1/health").text)
	}
	idle := func() string { return p.server.registry.Tables.Of(state.IdleTTL)["two"] }
	p.until("the idle time is 7 minutes", func() bool { return idle() == "420000" })
	p.want(200, p.post("/api/chat", `{"model":"two","messages":[{"role":"user","content":"hi"}],"keep_alive":-1}`))
	p.until("the idle time has no end", func() bool { return idle() == "-1" })
	p.want(200, p.post("/api/chat", `{"model":"two","messages":[{"role":"user","content":"hi"}],"keep_alive":0}`))
	p.until("the model is unloaded", func() bool { return record() == nil })
	for range 2 { // the second time there is nothing to unload, which is no error
		list := objects(t, p.want(200, p.post("/api/chat", `{"model":"two","messages":[],"keep_alive":0}`)))
		if len(list) != 1 || list[0]["done_reason"] != "unload" {
			t.Errorf("%v", list)
		}
	}
	if record() != nil {
		t.Error("still loaded")
	}
}

func TestOllamaEmbed(t *testing.T) {
	p := newPool(t, "1")
	openAI := p.want(200, p.post("/v1/embeddings", `{"model":"vec","input":["a","b"]}`))
	r := p.want(200, p.post("/api/embed", `{"model":"vec","input":["a","b"]}`))
	got, _ := r.json["embeddings"].([]any)
	if len(got) != 2 || len(got[1].([]any)) != len(openAI.list("data")[1]["embedding"].([]any)) || r.json["prompt_eval_count"] == 0.0 {
		t.Fatalf("%s", r.text)
	}
	one := p.want(200, p.post("/api/embeddings", `{"model":"vec","prompt":"b"}`))
	if a, b := one.json["embedding"].([]any), got[1].([]any); len(a) != len(b) || a[0] != b[0] {
		t.Errorf("%v, want %v", a, b)
	}
	for path, body := range map[string]string{"/api/embed": `{"model":"vec","input":[]}`, "/api/embeddings": `{"model":"vec"}`} {
		if r := p.want(200, p.post(path, body)); !strings.Contains(r.text, `[]`) {
			t.Errorf("%s: %s", path, r.text)
		}
	}
	if r := p.post("/api/embed", `{"model":"vec","input":"a","dimensions":3}`); r.status != http.StatusBadRequest {
		t.Errorf("dimensions of a model without: %d %s", r.status, r.text)
	}
}

func TestOllamaErrors(t *testing.T) {
	p := newPool(t, "")
	for body, want := range map[string]int{
		`{"model":"nobody","messages":[]}`:                                                   404,
		`{"model":"vec","messages":[]}`:                                                      400,
		`{"model":"one","messages":[],"keep_alive":"x"}`:                                     400,
		`{"model":"one","messages":[{"images":["?"]}]}`:                                      400,
		`{"model":"one","messages":[{"role":"user"}],"options":{"num_ctx":"x"}}`:             400,
		`{"model":"one","messages":[{"role":"user","content":["hi"]}],"options":{"seed":1}}`: 400,
		`{"model"`: 400,
	} {
		r := p.post("/api/chat", body)
		if text, _ := r.json["error"].(string); r.status != want || text == "" {
			t.Errorf("%s: %d %s, want %d", body, r.status, r.text, want)
		}
	}
}

// A load with a context size that is not queued in time ends as any wait does.
func TestOllamaLoadNotQueued(t *testing.T) {
	s := newStage(t)
	r := s.ask("POST", "/api/generate", `{"model":"chat","stream":false,"options":{"num_ctx":1024}}`, "x-wait-timeout: 0")
	if r.status != 503 {
		t.Errorf("%d %s", r.status, r.text)
	}
}

// While a model loads, a stream reports it with empty words. A failure is then its last line.
func TestOllamaStreamWaits(t *testing.T) {
	const body = `{"model":"chat","messages":[{"role":"user","content":"hi"}]}`
	s := newStage(t, eager).serve(sse(one, end))
	release := make(chan struct{})
	s.loading(func(string) state.Outcome { <-release; return state.Outcome{} })
	resp := s.open(t.Context(), "POST", "/api/chat", body)
	text := readUntil(t, resp.Body, `"content":""},"done":false}`)
	close(release)
	r := s.read(resp)
	r.text = text[strings.LastIndexByte(text, '\n')+1:] + r.text
	if list := objects(t, reply{header: r.header, text: r.text}); list[len(list)-1]["done"] != true {
		t.Errorf("%q", r.text)
	}

	s = newStage(t, eager).warm("chat").serve(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond) // committed by then
		sse(one, one[:9], "break")(w, r)
	})
	r = s.ask("POST", "/api/chat", body)
	if lines := strings.Split(strings.TrimSuffix(r.text, "\n"), "\n"); r.status != 200 || !strings.HasPrefix(lines[len(lines)-1], `{"error":"`) || strings.Contains(r.text, `"done":true`) {
		t.Errorf("%d %q", r.status, r.text)
	}
	s = newStage(t).warm("chat")
	if r := s.ask("POST", "/api/chat", body); r.status != http.StatusBadGateway {
		t.Errorf("no stream: %d %q", r.status, r.text)
	}
	if r := s.ask("POST", "/api/chat", strings.Replace(body, `}]`, `}],"stream":false`, 1)); r.status != http.StatusBadGateway {
		t.Errorf("no completion: %d %q", r.status, r.text)
	}
}

// The keep_alive of a client that left before its response was complete has no effect.
func TestOllamaKeepAliveAfterTheClientLeft(t *testing.T) {
	s := newStage(t, eager).warm("chat")
	asked := make(chan struct{}, 100)
	s.serve(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	s.loading(func(string) state.Outcome { <-release; return state.Outcome{} })
	ask := func(model, keep, stream string, there func()) {
		t.Helper()
		ctx, leave := context.WithCancel(t.Context())
		body := `{"model":"` + model + `","messages":[{"role":"user","content":"hi"}],"keep_alive":` + keep + `,"stream":` + stream + `}`
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+s.addr+"/api/chat", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if resp, err := s.http.Do(req); err == nil { // the head of a stream
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		there()
		leave()
		<-gone
		s.settled()
		time.Sleep(20 * time.Millisecond) // time for what must not happen
		s.mu.Lock()
		orders := s.loads["chat"]
		s.mu.Unlock()
		if kept := s.server.registry.Tables.Of(state.IdleTTL); len(kept) > 0 || orders > 0 {
			t.Fatalf("%s: idle times %v, %d orders for a loaded model", body, kept, orders)
		}
	}
	for _, keep := range []string{"0", "-1", `"9m"`} {
		ask("chat", keep, "true", func() { <-asked })
		ask("chat", keep, "false", func() { <-asked })
		ask("spare", keep, "false", func() { s.until("it waits", func() bool { return s.gate.Waiting()["spare"] > 0 }) })
	}
}

// A key without manage shortens the idle time of its model within bounds. It does not unload, pin, or size models, and
// it does not change what a manager set.
func TestOllamaKeepAliveNeedsManage(t *testing.T) {
	p := newPool(t, "1", func(c *Config) { c.Keys = keyFile(t, localKey+" infer,manage\ninfer-key infer\n") })
	idle := func() string { return p.server.registry.Tables.Of(state.IdleTTL)["two"] }
	ask := func(status int, key, path, body string) reply {
		t.Helper()
		return p.want(status, p.with(key, "POST", path, body))
	}
	chat := func(key, keep string) {
		t.Helper()
		ask(200, key, "/api/chat", `{"model":"two","messages":[{"role":"user","content":"hi"}],"stream":false,"options":{"num_ctx":4096},"keep_alive":`+keep+`}`)
	}
	steps := []struct{ key, keep, want string }{ // two is configured to stay for 10 minutes
		{"infer-key", `"7m"`, "420000"}, {"infer-key", `"3s"`, "60000"}, {"infer-key", `1e-9`, "60000"}, {"infer-key", `"99h"`, ""},
		{"infer-key", `"10m"`, ""}, {"infer-key", `-1`, ""}, {"infer-key", `0`, ""}, {"infer-key", `"-5m"`, ""}, {"infer-key", `120`, "120000"},
		{localKey, `-1`, "-1"}, {"infer-key", `"5m"`, "-1"}, {localKey, `"3s"`, "3000"}, {"infer-key", `"5m"`, "3000"}, {localKey, `"2h"`, "7200000"}, {"infer-key", `"5m"`, "7200000"},
	}
	for _, c := range steps {
		was := idle()
		chat(c.key, c.keep)
		if was == c.want {
			time.Sleep(20 * time.Millisecond) // time for what must not happen
		}
		p.until("keep_alive "+c.keep+" of "+c.key+" makes the idle time "+c.want, func() bool { return idle() == c.want })
	}
	loaded := func() *state.ModelRecord { return p.mirror.Snapshot().Hosts["here"].Models["two"] }
	pid := loaded().PID
	if pid == 0 || !strings.Contains(string(loaded().Options), "512") {
		t.Errorf("loaded with %s, process %d", loaded().Options, pid)
	}
	for _, body := range []string{`{"model":"two","keep_alive":0}`, `{"model":"two","messages":[],"keep_alive":"0s"}`, `{"model":"two","prompt":"","keep_alive":-0.0}`} {
		for _, path := range []string{"/api/chat", "/api/generate"} {
			if r := ask(403, "infer-key", path, body); !strings.Contains(r.text, "manage") {
				t.Errorf("%s %s: %s", path, body, r.text)
			}
		}
	}
	p.want(200, p.post("/v1/internal/pin", `{"model_name":"two","pinned":true}`))
	chat("infer-key", "0")
	chat("infer-key", `"1m"`)
	ask(200, "infer-key", "/api/generate", `{"model":"two","options":{"num_ctx":8192},"keep_alive":60}`)
	if m := loaded(); m == nil || m.PID != pid || !p.server.registry.IsPinned(p.catalog(), m) {
		t.Errorf("an infer key changed a pinned model: %+v, process %d before", m, pid)
	}
	// With every slot pinned, waiting may help: on these routes a load with its own options gets the same response.
	for _, body := range []string{`{"model":"one","options":{"num_ctx":1024}}`, `{"model":"one","prompt":"hi","options":{"num_ctx":1024}}`} {
		ask(503, localKey, "/api/generate", body[:len(body)-1]+`,"stream":false}`)
		ask(503, "infer-key", "/api/generate", body[:len(body)-1]+`,"stream":false}`)
	}
	p.want(409, p.post("/v1/load", `{"model_name":"one"}`))
}

// Only a key that may use the priority high gets it, and one held to low has no other.
func TestPriority(t *testing.T) {
	set := keyFile(t, "plain-key infer\nhasty-key infer priority=high\nslow-key infer priority=low\n")
	s := newStage(t, func(_ *stage, c *Config) { c.Keys = set }).warm("vec", "chat")
	got := make(chan string, 1)
	s.serve(func(w http.ResponseWriter, r *http.Request) {
		got <- strings.Join(r.Header.Values("X-Priority"), ",")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","data":[{"index":0,"embedding":[1]}],"usage":{"prompt_tokens":1}}`)
	})
	for _, c := range []struct{ key, priority, want string }{
		{"plain", "high", ""}, {"plain", "HIGH", ""}, {"plain", "low", "low"}, {"plain", "normal", ""}, {"hasty", "high", "high"}, {"hasty", "higher", ""}, {"hasty", "low", "low"},
		{"slow", "high", "low"}, {"slow", "normal", "low"}, {"slow", "low", "low"},
	} {
		for path, body := range map[string]string{"/v1/embeddings": `{"model":"vec","input":"a"}`, "/api/embed": `{"model":"vec","input":"a"}`, chatPath: chatBody} {
			if r := s.ask("POST", path, body, "Authorization: Bearer "+c.key+"-key", "x-priority: "+c.priority); r.status != 200 {
				t.Fatalf("%s: %d %s", path, r.status, r.text)
			}
			if v := <-got; v != c.want {
				t.Errorf("%s of %s on %s: %q, want %q", c.priority, c.key, path, v, c.want)
			}
		}
	}
}
