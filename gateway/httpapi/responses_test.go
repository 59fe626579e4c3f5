package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// A response has the content of the same chat, whole and as a stream.
func TestResponses(t *testing.T) {
	p := newPool(t, "1")
	openAI := p.want(200, p.chat("one"))
	want := openAI.list("choices")[0]["message"].(map[string]any)["content"]
	const body = `{"model":"uno","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]`
	said := func(output any) any {
		list, _ := output.([]any)
		if len(list) != 1 {
			t.Fatalf("output %v", output)
		}
		return list[0].(map[string]any)["content"].([]any)[0].(map[string]any)["text"]
	}
	r := p.want(200, p.post("/v1/responses", body+`}`))
	if r.json["object"] != "response" || r.json["status"] != "completed" || r.json["model"] != "one" || r.json["store"] != false || r.header.Get("X-Model") != "one" {
		t.Errorf("%s", r.text)
	}
	if got := said(r.json["output"]); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	stream := p.want(200, p.post("/v1/responses", body+`,"max_output_tokens":3,"stream":true}`))
	text, last := "", map[string]any{}
	for block := range strings.SplitSeq(strings.TrimSuffix(stream.text, "\n\n"), "\n\n") {
		_, data, _ := strings.Cut(block, "\ndata: ")
		if err := json.Unmarshal([]byte(data), &last); err != nil {
			t.Fatalf("%q: %v", block, err)
		}
		if last["type"] == "response.output_text.delta" {
			text += last["delta"].(string)
		}
	}
	end, _ := last["response"].(map[string]any)
	if last["type"] != "response.incomplete" || end["status"] != "incomplete" || text == "" || said(end["output"]) != text || !strings.HasPrefix(want.(string), text) {
		t.Errorf("%q, want the beginning of %q, ended with %v", text, want, last)
	}
	if u := p.get("/v1/stats").text; !strings.Contains(u, `"input_tokens":`) {
		t.Errorf("stats: %s", u)
	}
}

// The engine receives a chat with a chat's members and the model's own name.
func TestResponsesAreChats(t *testing.T) {
	s := newStage(t).warm("chat").serve(sse(one, last, end))
	const body = `{"model":"nick","instructions":"i","input":"hi","max_output_tokens":7,"store":true,"zz":1,"text":{"format":{"type":"json_object"}},"stream":true}`
	r := s.ask("POST", "/v1/responses", body)
	if r.status != 200 || r.header.Get("Content-Type") != "text/event-stream; charset=utf-8" || !strings.Contains(r.text, `"input_tokens":11`) {
		t.Errorf("%d %v %s", r.status, r.header, r.text)
	}
	const want = `{"max_tokens":7,"messages":[{"role":"system","content":"i"},{"role":"user","content":"hi"}],"model":"chat","response_format":{"type":"json_object"},"stream":true,"stream_options":{"include_usage":true}}`
	if got := s.got(); len(got) != 1 || got[0].path != chatPath || string(got[0].body) != want {
		t.Errorf("%+v", got)
	}
	s.until("the usage was read", func() bool { return s.stat("input_tokens") == 11 && s.stat("output_tokens") == 22 })
}

func TestInputTokens(t *testing.T) {
	const body = `{"model":"chat","input":"hi","instructions":"i","stream":true}`
	s := newStage(t).warm("chat").serve(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"x","input_tokens":7}`)
	})
	if r := s.ask("POST", "/v1/responses/input_tokens", body); r.status != 200 || r.text != `{"object":"response.input_tokens","input_tokens":7}` {
		t.Errorf("%d %s", r.status, r.text)
	}
	if got := s.got(); len(got) != 1 || got[0].path != chatPath+"/input_tokens" || !strings.Contains(string(got[0].body), `"role":"system"`) {
		t.Errorf("%+v", got)
	}
	s.serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })
	if r := s.ask("POST", "/v1/responses/input_tokens", body); r.status != http.StatusBadGateway {
		t.Errorf("%d %s", r.status, r.text)
	}
}

func TestResponsesErrors(t *testing.T) {
	p := newPool(t, "")
	for body, param := range map[string]string{
		`"input":""`:                                 "input",
		`"input":[{"role":"root"}]`:                  "input",
		`"input":"a","previous_response_id":"r"`:     "previous_response_id",
		`"input":"a","text":{"format":{"type":"x"}}`: "text.format",
		`"input":[{"role":"user","content":[{"type":"input_image","image_url":"http://a"}]}]`: "input",
		`"input":"a","stream":true,"tools":[{"type":"mcp"}]`:                                  "tools",
	} {
		r := p.post("/v1/responses", `{"model":"one",`+body+`}`)
		e, _ := r.json["error"].(map[string]any)
		if r.status != 400 || e["param"] != param || e["message"] == "" || e["code"] == nil {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
}

// An engine's error about its chat names the request's own member.
func TestResponsesEngineErrors(t *testing.T) {
	s := newStage(t).warm("chat").serve(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"error":{"code":500,"message":"image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"}}`)
	})
	r := s.ask("POST", "/v1/responses", `{"model":"chat","input":"hi"}`)
	if e, _ := r.json["error"].(map[string]any); r.status != 400 || e["param"] != "input" {
		t.Errorf("%d %s", r.status, r.text)
	}
}

// While a model loads, a stream has comments. The events start with the response.
func TestResponsesStreamWaits(t *testing.T) {
	const body = `{"model":"chat","input":"hi","stream":true}`
	s := newStage(t, eager).serve(sse(one, end))
	release := make(chan struct{})
	s.loading(func(string) state.Outcome { <-release; return state.Outcome{} })
	resp := s.open(t.Context(), "POST", "/v1/responses", body)
	text := readUntil(t, resp.Body, ": loading model=chat state=loading")
	close(release)
	if text += s.read(resp).text; strings.Count(text, "event: response.created\n") != 1 || !strings.Contains(text, "event: response.completed\ndata: ") || strings.Contains(text, "[DONE]") {
		t.Errorf("%q", text)
	}
	s = newStage(t).warm("chat")
	for _, stream := range []string{"true", "false"} {
		if r := s.ask("POST", "/v1/responses", strings.Replace(body, "true", stream, 1)); r.status != http.StatusBadGateway {
			t.Errorf("no completion: %d %q", r.status, r.text)
		}
	}
}

// scripted responds to chats as their last message says: with calls and thoughts, truncated, or broken off.
func scripted(t *testing.T) http.HandlerFunc {
	const chunk, close = `data: {"choices":[{"delta":`, "}]}\n\n"
	streams := map[string][]string{
		"call": {
			chunk + `{"role":"assistant","content":null,"reasoning_content":"He wants"}` + close, chunk + `{"reasoning_content":" the weather."}` + close,
			chunk + `{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"weather","arguments":"{\"ci"}}]}` + close,
			chunk + `{"tool_calls":[{"index":1,"id":"c2","type":"function","function":{"name":"time","arguments":""}}]}` + close,
			chunk + `{"tool_calls":[{"index":0,"function":{"arguments":"ty\":\"Rome\"}"}}]}` + close,
			chunk + `{},"finish_reason":"tool_calls"` + close, last, end,
		},
		"length": {one, chunk + `{},"finish_reason":"length"` + close, last, end},
		"broken": {one, "break"},
	}
	whole := map[string]string{
		"call": `{"message":{"content":null,"reasoning_content":"He wants the weather.","tool_calls":[{"id":"c1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Rome\"}"}},
			{"id":"c2","type":"function","function":{"name":"time","arguments":""}}]},"finish_reason":"tool_calls"}`,
		"length": `{"message":{"content":"a"},"finish_reason":"length"}`,
	}
	return func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Stream   bool
			Messages []struct{ Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
			return
		}
		name := q.Messages[len(q.Messages)-1].Content
		switch {
		case q.Stream:
			sse(streams[name]...)(w, r)
		case whole[name] == "":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[`+whole[name]+`],"usage":{"prompt_tokens":11,"completion_tokens":22}}`)
		}
	}
}

// client runs a script of testdata, which prints ok.
func client(t *testing.T, script string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Python(t), append([]string{"-B", filepath.Join("testdata", script)}, args...)...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// The official clients recognize calls, thoughts, truncated and broken responses.
func TestOfficialClients(t *testing.T) {
	s := newStage(t).warm("chat").serve(scripted(t))
	client(t, "responses.py", "http://"+s.addr)
}

// repeats responds to a chat with the messages it was sent, whole or as a stream.
func repeats(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Stream   bool
			Messages json.RawMessage
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
			return
		}
		text, _ := json.Marshal(string(q.Messages))
		if q.Stream {
			sse(`data: {"choices":[{"delta":{"content":`+string(text)+`}}]}`+"\n\n", last, end)(w, r)
			return
		}
		answering(`{"choices":[{"message":{"content":`+string(text)+`},"finish_reason":"stop"}]}`)(w, r)
	}
}

// The official openai client continues stored responses.
func TestStoredResponses(t *testing.T) {
	set := keyFile(t, "ann-secret infer\nbob-secret infer\n")
	s := newStage(t, func(_ *stage, c *Config) { c.Keys, c.ResponseRetention = set, time.Hour }).warm("chat").serve(repeats(t))
	client(t, "conversation.py", "http://"+s.addr, "ann-secret", "bob-secret")
}

// A response that is deleted while its continuation runs stays deleted. The continuation has its items and is stored.
func TestDeletedWhileContinued(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.ResponseRetention = time.Hour }).warm("chat").serve(repeats(t))
	first := s.ask("POST", "/v1/responses", `{"model":"chat","input":"hi"}`)
	old := "/v1/responses/" + first.json["id"].(string)
	s.serve(func(w http.ResponseWriter, r *http.Request) {
		if d := s.ask("DELETE", old, ""); d.status != 200 && d.status != 404 { // 404: the second time
			t.Errorf("delete: %d %s", d.status, d.text)
		}
		repeats(t)(w, r)
	})
	body := `{"model":"chat","input":"and?","previous_response_id":"` + first.json["id"].(string) + `"}`
	next := s.ask("POST", "/v1/responses", body)
	if next.status != 200 || next.json["store"] != true || next.json["previous_response_id"] != first.json["id"] {
		t.Fatalf("continuation: %d %s", next.status, next.text)
	}
	if r := s.ask("GET", old, ""); r.status != 404 || r.code() != "response_not_found" {
		t.Errorf("the deleted response: %d %s", r.status, r.text)
	}
	if r := s.ask("POST", "/v1/responses", body); r.status != 404 || r.param() != "previous_response_id" {
		t.Errorf("a second continuation: %d %s", r.status, r.text)
	}
	id := next.json["id"].(string)
	if r := s.ask("GET", "/v1/responses/"+id, ""); r.status != 200 {
		t.Errorf("the continuation: %d %s", r.status, r.text)
	}
	if r := s.ask("POST", "/v1/responses", `{"model":"chat","input":"more","previous_response_id":"`+id+`"}`); r.status != 200 {
		t.Errorf("the conversation goes on: %d %s", r.status, r.text)
	}
}

// References that would make a conversation too large are refused before it is made: their number before Redis is
// asked, the size before anything is copied.
func TestReferencesCannotAmplify(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.ResponseRetention = time.Hour }).warm("chat").serve(repeats(t))
	first := s.ask("POST", "/v1/responses", `{"model":"chat","input":"`+strings.Repeat("many words ", 1<<20/11)+`"}`)
	id := first.json["output"].([]any)[0].(map[string]any)["id"].(string)
	body := func(n int) string {
		return `{"model":"chat","input":[` + strings.Repeat(`{"type":"item_reference","id":"`+id+`"},`, n) + `{"role":"user","content":"and?"}]}`
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := s.ask("POST", "/v1/responses", body(500))
	runtime.ReadMemStats(&after)
	if more := (after.TotalAlloc - before.TotalAlloc) >> 20; r.status != 413 || r.param() != "input" || more > 200 {
		t.Errorf("%d %.200s; %d MiB allocated", r.status, r.text, more)
	}
	s.redis.SetError("READONLY away")
	defer s.redis.SetError("")
	if r := s.ask("POST", "/v1/responses", body(api.MaxItems+1)); r.status != 400 || r.param() != "input" {
		t.Errorf("%d %.200s", r.status, r.text)
	}
}

// Without the setting, nothing is stored and nothing continued. A conversation that is too large is not stored, and one
// that could not be continues none; a response that could not be stored says so.
func TestUnstoredResponses(t *testing.T) {
	off := newStage(t).warm("chat").serve(repeats(t))
	r := off.ask("POST", "/v1/responses", `{"model":"chat","input":"hi","store":true}`)
	id, _ := r.json["id"].(string)
	if r.status != 200 || r.json["store"] != false {
		t.Errorf("%d %s", r.status, r.text)
	}
	for method, path := range map[string]string{"GET": "/v1/responses/" + id, "DELETE": "/v1/responses/" + id} {
		if r := off.ask(method, path, ""); r.status != 404 || r.code() != "response_not_found" {
			t.Errorf("%s: %d %s", method, r.status, r.text)
		}
	}

	s := newStage(t, func(_ *stage, c *Config) { c.ResponseRetention = time.Hour }).warm("chat").serve(repeats(t))
	for body, param := range map[string]string{`"previous_response_id":1`: "previous_response_id", `"store":"yes"`: "store"} {
		if r := s.ask("POST", "/v1/responses", `{"model":"chat","input":"hi",`+body+`}`); r.status != 400 || r.param() != param {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
	first := s.ask("POST", "/v1/responses", `{"model":"chat","input":"hi"}`)
	if r := s.ask("GET", "/v1/responses/"+first.json["id"].(string)+"?stream=true", ""); r.status != 400 || r.param() != "stream" {
		t.Errorf("%d %s", r.status, r.text)
	}
	large := strings.Repeat("many words ", state.MaxResponse/11+1)
	r = s.ask("POST", "/v1/responses", `{"model":"chat","input":"`+large+`","previous_response_id":"`+first.json["id"].(string)+`"}`)
	if r.status != 413 || r.param() != "input" {
		t.Errorf("%d %.200s", r.status, r.text)
	}

	s.serve(func(w http.ResponseWriter, r *http.Request) {
		s.redis.SetError("READONLY away")
		repeats(t)(w, r)
	})
	defer s.redis.SetError("")
	if r := s.ask("POST", "/v1/responses", `{"model":"chat","input":"hi"}`); r.status != 200 || r.json["store"] != false {
		t.Errorf("%d %s", r.status, r.text)
	}
}
