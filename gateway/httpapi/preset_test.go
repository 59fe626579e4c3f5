package httpapi

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

// TestPresets: a model's alias sets what a body leaves out and replaces what it forces, in every API, and what it sets
// is checked like a client's.
func TestPresets(t *testing.T) {
	s := newStage(t).warm("chat")
	for name, c := range map[string]struct {
		path, body string
		want       map[string]any // members that the engine gets
	}{
		"left out":     {chatPath, `{"model":"deep","messages":[{"role":"user","content":"hi"}]}`, map[string]any{"reasoning_effort": "high", "temperature": 0.6, "max_tokens": 7.0, "model": "chat"}},
		"given":        {chatPath, `{"temperature":1,"max_tokens":99,"model":"DEEP:latest","messages":[{"role":"user","content":"hi"}]}`, map[string]any{"temperature": 1.0, "max_tokens": 7.0}},
		"null":         {chatPath, `{"temperature":null,"model":"openai/deep","messages":[{"role":"user","content":"hi"}]}`, map[string]any{"temperature": 0.6}},
		"another name": {chatPath, `{"model":"nick","messages":[{"role":"user","content":"hi"}]}`, map[string]any{"temperature": nil, "max_tokens": nil}},
		"Ollama":       {"/api/chat", `{"model":"deep","stream":false,"messages":[{"role":"user","content":"hi"}]}`, map[string]any{"temperature": 0.6, "max_tokens": 7.0}},
		"responses":    {"/v1/responses", `{"model":"deep","input":"hi"}`, map[string]any{"temperature": 0.6, "max_tokens": 7.0}},
		"first loaded": {chatPath, `{"model":"fast","messages":[{"role":"user","content":"hi"}]}`, map[string]any{"model": "chat"}},
	} {
		s.ask("POST", c.path, c.body)
		seen := s.got()
		var got map[string]any
		if err := json.Unmarshal(seen[len(seen)-1].body, &got); err != nil {
			t.Fatal(err)
		}
		for member, want := range c.want {
			if got[member] != want {
				t.Errorf("%s: %s is %v, want %v", name, member, got[member], want)
			}
		}
	}
	if r := s.ask("POST", chatPath, `{"model":"fast","messages":[{"role":"user","content":"hi"}]}`); r.header.Get("X-Model") != "chat" {
		t.Errorf("the first loaded of several: %s", r.header.Get("X-Model"))
	}
	var listed []string
	for _, m := range s.ask("GET", "/v1/models?show_all", "").list("data") {
		listed = append(listed, m["id"].(string))
	}
	if !slices.Contains(listed, "deep") || !slices.Contains(listed, "fast") || slices.Contains(listed, "nick") {
		t.Errorf("listed: %v", listed)
	}
	if s.loads["same"] != 0 {
		t.Errorf("loads: %v", maps.Clone(s.loads))
	}
}
