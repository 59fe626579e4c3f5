package httpapi

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// newCompletionStage returns an engine that streams events.
func newCompletionStage(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, strings.Join(events, ""))
	}
}

const spoken = `{"choices":[{"text":" on","index":0,"logprobs":{"content":[{"id":1,"token":" on","bytes":[32],"logprob":-0.5,"top_logprobs":[{"token":" on","logprob":-0.5},{"token":" in","logprob":-2}]}]},"finish_reason":null}],"object":"text_completion"}`

// Log-probabilities of llama-server's text completions have OpenAI's form.
func TestCompletionsOfLlamaServer(t *testing.T) {
	s := newStage(t).warm("llama", "chat")
	for _, c := range []struct{ name, body, sent, want string }{
		{"log-probabilities", `{"model":"llama","prompt":"sat","logprobs":2.0}`, `{"model":"llama","prompt":"sat","logprobs":2}`,
			`"logprobs":{"tokens":[" on"],"token_logprobs":[-0.5],"top_logprobs":[{" in":-2," on":-0.5}],"text_offset":[0]},"text":" on"`},
		{"of the chosen alone", `{"model":"llama","prompt":"sat","logprobs":0}`, `{"model":"llama","prompt":"sat","logprobs":1}`,
			`"logprobs":{"tokens":[" on"],"token_logprobs":[-0.5],"top_logprobs":null,"text_offset":[0]}`},
		{"none", `{"model":"llama","prompt":"sat","logprobs":true,"echo":false,"suffix":""}`, "", spoken},
		{"another engine", `{"model":"chat","prompt":"sat","logprobs":2,"echo":true,"suffix":"mat"}`, `{"model":"chat","prompt":"sat","logprobs":2,"echo":true,"suffix":"mat"}`, spoken},
	} {
		s.serve(answering(spoken))
		r := s.ask("POST", "/v1/completions", c.body)
		got := s.got()[len(s.got())-1]
		if r.status != 200 || !strings.Contains(r.text, c.want) || got.path != "/v1/completions" || c.sent != "" && string(got.body) != c.sent {
			t.Errorf("%s: %d %s; the engine got %s %s", c.name, r.status, r.text, got.path, got.body)
		}
	}
	for body, param := range map[string]string{
		`{"model":"llama","prompt":"sat","echo":true}`:    "echo",
		`{"model":"llama","prompt":"sat","suffix":"mat"}`: "suffix",
		`{"model":"llama","prompt":"sat","logprobs":1.5}`: "logprobs",
		`{"model":"llama","prompt":"sat","id_slot":3}`:    "id_slot",
	} {
		if r := s.ask("POST", "/v1/completions", body); r.status != 400 || r.param() != param {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
}

// The same in streams, event by event.
func TestStreamsOfCompletionsOfLlamaServer(t *testing.T) {
	const asked = `{"model":"llama","prompt":"sat","logprobs":1,"stream":true}`
	s := newStage(t).warm("llama").serve(newCompletionStage("data: null\n\n", "data: "+spoken+"\n\n", "data: "+spoken+"\n\n", "data: [DONE]\n\n"))
	const want = `"text_offset":[0]},"text":" on"}],"object":"text_completion"}` + "\n\n" + `data: {"choices":[{"finish_reason":null,"index":0,` +
		`"logprobs":{"tokens":[" on"],"token_logprobs":[-0.5],"top_logprobs":[{" in":-2," on":-0.5}],"text_offset":[3]}`
	r := s.ask("POST", "/v1/completions", asked)
	if r.status != 200 || !strings.Contains(r.text, want) || !strings.HasSuffix(r.text, "data: [DONE]\n\n") || strings.Contains(r.text, "null\n") {
		t.Errorf("%d %s", r.status, r.text)
	}
	s.serve(newCompletionStage("data: "+spoken+"\n\n", `data: {"error":{"code":500,"message":"it broke","type":"server_error"}}`+"\n\n"))
	if r := s.ask("POST", "/v1/completions", asked); !strings.Contains(r.text, "data: {\"error\":") || strings.Contains(r.text, "[DONE]") {
		t.Errorf("an error: %s", r.text)
	}
}
