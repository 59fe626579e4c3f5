package httpapi

import (
	"testing"
)

// llama-server's own paths work for a model that the body, the query or the default names. Their bodies follow the same
// rules as others.
func TestEnginePathsOfAModel(t *testing.T) {
	s := newStage(t).warm("llama").serve(answering(`{"ok":true}`))
	for _, c := range []struct{ path, body, engine, sent string }{
		{"/tokenize?model=llama", `{"content":"a"}`, "/tokenize", `{"content":"a"}`},
		{"/v1/tokenize", `{"model":"llama","content":"a"}`, "/tokenize", `{"model":"llama","content":"a"}`},
		{"/v0/detokenize?model=LLAMA", `{"tokens":[1]}`, "/detokenize", `{"model":"llama","tokens":[1]}`},
		{"/apply-template?model=llama", `{"messages":[{"role":"user","content":"hi"}]}`, "/apply-template", `{"messages":[{"role":"user","content":"hi"}]}`},
		{"/tokenize", `{"content":"a"}`, "/tokenize", `{"model":"llama","content":"a"}`}, // of the loaded model
		{"/tokenize?model=nobody", `{"model":"llama","content":"a"}`, "/tokenize", `{"model":"llama","content":"a"}`},
	} {
		r := s.ask("POST", c.path, c.body)
		if r.status != 200 || r.text != `{"ok":true}` {
			t.Errorf("%s %s: %d %s", c.path, c.body, r.status, r.text)
			continue
		}
		if got := s.got()[len(s.got())-1]; got.path != c.engine || string(got.body) != c.sent {
			t.Errorf("%s: the engine got %s %s", c.path, got.path, got.body)
		}
	}
	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/tokenize?model=nobody", `{"content":"a"}`, 404, "model_not_found"},
		{"/tokenize?model=vec", `{"content":"a"}`, 400, "model_type_mismatch"},
		{"/apply-template?model=llama", `{}`, 400, "missing_required_parameter"},
		{"/apply-template?model=llama", `{"messages":[{"role":"user","content":"hi"}],"chat_template":"x"}`, 400, "unsupported_parameter"},
		{"/v1/chat/completions?model=llama", `{"messages":[{"role":"user","content":"hi"}]}`, 400, "missing_required_parameter"},
	} {
		if r := s.ask("POST", c.path, c.body); r.status != c.status || r.code() != c.code {
			t.Errorf("%s %s: %d %s", c.path, c.body, r.status, r.text)
		}
	}
	item := s.ask("GET", "/v1/models/llama", "")
	for _, name := range []string{"context_length", "max_context_window"} {
		if n, there := item.json[name]; there {
			t.Errorf("%s of a model whose context is not known is %v", name, n)
		}
	}
}

// Without a name there must be a loaded language model: none is loaded for such a request.
func TestEnginePathsWithoutAModel(t *testing.T) {
	s := newStage(t).warm("vec").serve(answering(`{"ok":true}`))
	if r := s.ask("POST", "/tokenize", `{"content":"a"}`); r.status != 400 || r.code() != "missing_required_parameter" {
		t.Errorf("%d %s", r.status, r.text)
	}
}
