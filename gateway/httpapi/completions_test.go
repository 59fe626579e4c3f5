package httpapi

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// speaking returns an engine that streams events.
func speaking(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, strings.Join(events, ""))
	}
}

const (
	spoken = `{"choices":[{"text":" on","index":0,"logprobs":{"content":[{"id":1,"token":" on","bytes":[32],"logprob":-0.5,"top_logprobs":[{"token":" on","logprob":-0.5},{"token":" in","logprob":-2}]}]},"finish_reason":null}],"object":"text_completion"}`
	filled = `{"index":0,"content":" on","stop":true,"stop_type":"limit","tokens_predicted":1,"tokens_evaluated":7,"prompt":"secret"}`
)

// Text completions of llama-server get the features of OpenAI's: log-probabilities in OpenAI's format, the prompt, a
// suffix.
func TestCompletionsOfLlamaServer(t *testing.T) {
	s := newStage(t).warm("llama", "chat")
	for _, c := range []struct{ name, body, engine, sent, path, want string }{
		{"log-probabilities", `{"model":"llama","prompt":"sat","logprobs":2}`, spoken, `{"model":"llama","prompt":"sat","logprobs":2}`, "/v1/completions",
			`"logprobs":{"tokens":[" on"],"token_logprobs":[-0.5],"top_logprobs":[{" in":-2," on":-0.5}],"text_offset":[0]},"text":" on"`},
		{"of the chosen alone", `{"model":"llama","prompt":"sat","logprobs":0}`, spoken, `{"model":"llama","prompt":"sat","logprobs":1}`, "/v1/completions",
			`"logprobs":{"tokens":[" on"],"token_logprobs":[-0.5],"top_logprobs":null,"text_offset":[0]}`},
		{"echo", `{"model":"llama","prompt":"sat","echo":true}`, spoken, `{"model":"llama","prompt":"sat","echo":true}`, "/v1/completions", `"text":"sat on"`},
		{"echo of the second prompt", `{"model":"llama","prompt":["a","b"],"n":2,"echo":true}`, `{"choices":[{"text":"x","index":2},{"text":"y","index":1}]}`, "", "/v1/completions",
			`{"choices":[{"index":2,"text":"bx"},{"index":1,"text":"ay"}]}`},
		{"suffix", `{"model":"llama","prompt":"sat","suffix":"mat","max_tokens":1}`, filled, `{"n_predict":1,"input_suffix":"mat","input_prefix":"sat","model":"llama","max_tokens":1}`, "/infill",
			`"choices":[{"finish_reason":"length","index":0,"logprobs":null,"text":" on"}]`},
		{"an empty suffix", `{"model":"llama","prompt":"sat","suffix":""}`, spoken, `{"model":"llama","prompt":"sat","suffix":""}`, "/v1/completions", spoken},
		{"none of these", `{"model":"llama","prompt":"sat","logprobs":true}`, spoken, "", "/v1/completions", spoken},
		{"another engine", `{"model":"chat","prompt":"sat","logprobs":2,"echo":true,"suffix":"mat"}`, spoken, `{"model":"chat","prompt":"sat","logprobs":2,"echo":true,"suffix":"mat"}`, "/v1/completions", spoken},
	} {
		s.serve(answering(c.engine))
		r := s.ask("POST", "/v1/completions", c.body)
		got := s.got()[len(s.got())-1]
		if r.status != 200 || !strings.Contains(r.text, c.want) || strings.Contains(r.text, "secret") || got.path != c.path || c.sent != "" && string(got.body) != c.sent {
			t.Errorf("%s: %d %s; the engine got %s %s", c.name, r.status, r.text, got.path, got.body)
		}
	}
	if r := s.serve(answering(filled)).ask("POST", "/v1/completions", `{"model":"llama","prompt":"sat","suffix":"mat"}`); !strings.HasPrefix(r.json["id"].(string), "cmpl-") ||
		r.json["object"] != "text_completion" || r.json["model"] != "llama" || r.json["usage"].(map[string]any)["total_tokens"] != 8.0 {
		t.Error(r.text)
	}
	for body, param := range map[string]string{
		`{"model":"llama","prompt":"sat","echo":true,"logprobs":1}`:     "echo",
		`{"model":"llama","prompt":[1,2],"echo":true}`:                  "echo",
		`{"model":"llama","prompt":["a","b"],"suffix":"mat"}`:           "suffix",
		`{"model":"llama","prompt":"sat","suffix":"mat","n":2}`:         "suffix",
		`{"model":"llama","prompt":"sat","suffix":"mat","n_cmpl":2}`:    "suffix",
		`{"model":"llama","prompt":"sat","logprobs":1.5}`:               "logprobs",
		`{"model":"llama","prompt":"sat","logprobs":21}`:                "logprobs",
		`{"model":"llama","prompt":"sat","suffix":"mat","id_slot":3}`:   "id_slot",
		`{"model":"llama","prompt":"sat","suffix":["mat"],"echo":true}`: "suffix",
	} {
		if r := s.ask("POST", "/v1/completions", body); r.status != 400 || r.param() != param {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
	s.serve(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotImplemented)
		_, _ = io.WriteString(w, `{"error":{"code":501,"message":"Infill is not supported by this model: prefix token is missing. ","type":"not_supported_error"}}`)
	})
	if r := s.ask("POST", "/v1/completions", `{"model":"llama","prompt":"sat","suffix":"mat"}`); r.status != 400 || r.code() != "unsupported_parameter" {
		t.Errorf("a model that cannot: %d %s", r.status, r.text)
	}
}

// The same in streams, event by event.
func TestStreamsOfCompletionsOfLlamaServer(t *testing.T) {
	s := newStage(t).warm("llama")
	for _, c := range []struct {
		name, body string
		engine     []string
		want       string
	}{
		{"log-probabilities", `{"model":"llama","prompt":"sat","logprobs":1,"stream":true}`, []string{"data: null\n\n", "data: " + spoken + "\n\n", "data: " + spoken + "\n\n", "data: [DONE]\n\n"},
			`"text_offset":[0]},"text":" on"}],"object":"text_completion"}` + "\n\n" + `data: {"choices":[{"finish_reason":null,"index":0,"logprobs":{"tokens":[" on"],"token_logprobs":[-0.5],"top_logprobs":[{" in":-2," on":-0.5}],"text_offset":[3]}`},
		{"echo", `{"model":"llama","prompt":"sat","echo":true,"stream":true}`, []string{"data: " + `{"choices":[{"text":" on","index":0}]}` + "\n\n", "data: " + `{"choices":[{"text":" it","index":0}]}` + "\n\n", "data: [DONE]\n\n"},
			"data: " + `{"choices":[{"index":0,"text":"sat on"}]}` + "\n\ndata: " + `{"choices":[{"index":0,"text":" it"}]}` + "\n\ndata: [DONE]\n\n"},
		{"suffix", `{"model":"llama","prompt":"sat","suffix":"mat","stream":true}`, []string{"data: " + `{"index":0,"content":" on","stop":false}` + "\n\n", "data: " + filled + "\n\n"},
			`"finish_reason":null,"index":0,"logprobs":null,"text":" on"}]`},
	} {
		s.serve(speaking(c.engine...))
		r := s.ask("POST", "/v1/completions", c.body)
		if r.status != 200 || !strings.Contains(r.text, c.want) || !strings.HasSuffix(r.text, "data: [DONE]\n\n") || strings.Contains(r.text, "null\n") {
			t.Errorf("%s: %d %s", c.name, r.status, r.text)
		}
	}
	s.serve(speaking("data: "+spoken+"\n\n", `data: {"error":{"code":500,"message":"it broke","type":"server_error"}}`+"\n\n"))
	if r := s.ask("POST", "/v1/completions", `{"model":"llama","prompt":"sat","logprobs":1,"stream":true}`); !strings.Contains(r.text, "data: {\"error\":") || strings.Contains(r.text, "[DONE]") {
		t.Errorf("an error: %s", r.text)
	}
}
