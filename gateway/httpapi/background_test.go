package httpapi

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"reveille/infra/rpc"
)

// claudeTitle is a title's request as Claude Code 2.1.332 sent it, with shorter texts.
const claudeTitle = `{"model":"chat","messages":[{"role":"user","content":[{"type":"text",
"text":"<session>\nname the login form\n</session>\n\nWrite the title in the predominant language of the session"}]}],
"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.332.0ed; cc_entrypoint=cli;"},
{"type":"text","text":"You are naming a coding session so the user can pick it out of a long list of sessions."}],
"tools":[],"metadata":{"user_id":"{\"device_id\":\"8a\",\"account_uuid\":\"\"}"},"max_tokens":32000,"output_config":{"effort":"high",
"format":{"type":"json_schema","schema":{"type":"object","properties":{"title":{"type":"string"}},"required":["title"]}}},"stream":true}`

// TestBackground: a request in the background loads nothing, is no use of its model, and stands behind all others.
func TestBackground(t *testing.T) {
	s := newStage(t).warm("spare")
	s.engine = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"A title"},"finish_reason":"stop"}]}`)
	}
	title := func(prompt string) string {
		return `{"model":"chat","messages":[{"role":"user","content":"hi"},{"role":"user","content":` + prompt + `}]}`
	}
	used, _ := s.server.registry.Uses.LastOn(s.mirror.Snapshot().Hosts["here"].Models["spare"], "here")
	for name, c := range map[string]struct {
		path, body string
		head       []string
		want       string // the model that serves it, or a code
	}{
		"header, refused":              {chatPath, chatBody, []string{"x-priority: background", "x-cold-wait: fail"}, "background"},
		"header, any loaded model":     {chatPath, chatBody, []string{"x-priority: background", "x-cold-wait: fallback"}, "spare"},
		"header, the end of its wait":  {chatPath, chatBody, []string{"x-priority: background", "x-wait-timeout: 0.3"}, "background"},
		"a title of Open WebUI":        {chatPath, title(`"### Task:\nGenerate a concise title summarizing"`), nil, "spare"},
		"in a part":                    {chatPath, title(`[{"type":"text","text":"\u0023## Task:\nGenerate 1-3 broad tags"}]`), nil, "spare"},
		"as a prompt":                  {"/v1/completions", `{"model":"chat","prompt":"### Task:\nGenerate a concise title"}`, nil, "spare"},
		"Ollama's API":                 {"/api/chat", strings.Replace(title(`"### Task:\nGenerate a concise title"`), "{", `{"stream":false,`, 1), nil, "spare"},
		"a title of Claude Code":       {"/v1/messages?beta=true", claudeTitle, nil, "spare"},
		"a title of Continue":          {chatPath, `{"model":"chat","messages":[{"role":"user","content":"Given the following... please reply with a title for the chat that is 3-4 words"}],"max_tokens":16,"stream":false}`, nil, "spare"},
		"a probe":                      {"/api/generate", `{"model":"chat","prompt":"hi","stream":false}`, []string{"X-Client: Probe/1.0"}, "background"},
		"metadata":                     {chatPath, strings.Replace(chatBody, "{", `{"metadata":{"task":"title"},`, 1), []string{"x-wait-timeout: 0.1"}, "background"},
		"a stream, before its 200":     {chatPath, chatLive, []string{"x-priority: background", "x-wait-timeout: 0.1"}, "background"},
		"a load alone by Ollama's API": {"/api/generate", `{"model":"chat"}`, []string{"x-priority: background", "x-cold-wait: fail"}, "background"},
	} {
		r := s.ask("POST", c.path, c.body, c.head...)
		if r.status == 200 && r.header.Get("X-Model") != c.want || r.status != 200 && r.code() != c.want && !strings.Contains(r.text, "in the background") {
			t.Errorf("%s: %d %v %s, want %s", name, r.status, r.header, r.text, c.want)
		}
		if r.status != 200 && (r.status != 503 || r.header.Get("Retry-After") == "") {
			t.Errorf("%s: %d %v", name, r.status, r.header)
		}
	}
	for _, got := range s.got() {
		if got.priority != "background" || got.background == "" {
			t.Errorf("the runner got %+v", got)
		}
	}
	if now, _ := s.server.registry.Uses.LastOn(s.mirror.Snapshot().Hosts["here"].Models["spare"], "here"); now != used {
		t.Error("a request in the background is a use of its model")
	}
	if s.loads["chat"] != 0 {
		t.Error("the model was loaded")
	}
	if r := s.ask("POST", chatPath, title(`"### Task:\nGenerate a concise title"`), "x-priority: normal"); r.status != 200 || s.loads["chat"] != 1 {
		t.Errorf("a person's request: %d %s, %d loads", r.status, r.text, s.loads["chat"])
	}
}

// TestBackgroundWaits: it gets its response when somebody else has the model loaded.
func TestBackgroundWaits(t *testing.T) {
	s := newStage(t)
	done := make(chan reply, 2)
	for range 2 {
		go func() { done <- s.ask("POST", chatPath, chatBody, "x-priority: background") }()
	}
	s.until("both wait", func() bool { return s.server.m.background.Get() == 2 })
	if n := s.gate.Waiting()["chat"]; n != 0 {
		t.Errorf("%d requests wait for a load", n)
	}
	if r := s.ask("POST", chatPath, chatBody); r.status != 200 {
		t.Fatalf("a person's request: %d %s", r.status, r.text)
	}
	for range 2 {
		if r := <-done; r.status != 200 {
			t.Errorf("%d %s", r.status, r.text)
		}
	}
	if s.loads["chat"] != 1 {
		t.Errorf("%d loads", s.loads["chat"])
	}
}

// TestBackgroundRefused: its wait has an end while the runner of a loaded model refuses it.
func TestBackgroundRefused(t *testing.T) {
	s := newStage(t).warm("chat").serve(refuse(rpc.RefusedNotLoaded))
	if r := s.ask("POST", chatPath, chatBody, "x-priority: background", "x-wait-timeout: 0.3"); r.code() != "model_loading" {
		t.Errorf("%d %s", r.status, r.text)
	}
}
