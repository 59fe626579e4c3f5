package front

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
)

// objects are the lines of an NDJSON body.
func objects(t *testing.T, r reply) (out []map[string]any) {
	t.Helper()
	if got := r.header.Get("Content-Type"); got != ndjson {
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

// A chat in Ollama's form says what the same chat in OpenAI's says, whole and in lines.
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
	if m := record(); m == nil || m.State != "loaded" || !strings.Contains(p.get("/v1/health").text, "1024") {
		t.Errorf("%+v, %s", m, p.get("/v1/health").text)
	}
	idle := func() string { return p.server.tables.of(state.IdleTTL)["two"] }
	p.until("the idle time is 7 minutes", func() bool { return idle() == "420000" })
	p.want(200, p.post("/api/chat", `{"model":"two","messages":[{"role":"user","content":"hi"}],"keep_alive":-1}`))
	p.until("the idle time has no end", func() bool { return idle() == "-1" })
	p.want(200, p.post("/api/chat", `{"model":"two","messages":[{"role":"user","content":"hi"}],"keep_alive":0}`))
	p.until("the model is unloaded", func() bool { return record() == nil })
	for range 2 { // the second time there is nothing to unload, and that is well
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
		`{"model":"one","messages":[{"role":"user"}],"id_slot":1}`:                           400,
		`{"model":"one","messages":[{"role":"user","content":["hi"]}],"options":{"seed":1}}`: 400,
		`{"model"`: 400,
	} {
		r := p.post("/api/chat", body)
		if text, _ := r.json["error"].(string); r.status != want || text == "" {
			t.Errorf("%s: %d %s, want %d", body, r.status, r.text, want)
		}
	}
	if r := p.post("/api/create", `{}`); r.status != http.StatusNotImplemented {
		t.Errorf("create: %d %s", r.status, r.text)
	}
}

// While a model loads, a stream says so with empty words; what goes wrong then is its last line.
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
