package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

func checkFields(t *testing.T, path, body string) (*api.Route, []jsonscan.Value, *api.Error) {
	t.Helper()
	method := "POST"
	if path == "/api/delete" {
		method = "DELETE"
	}
	r := router.Match(method, path).Route
	if r == nil {
		t.Fatalf("%s has no route", path)
	}
	values := make([]jsonscan.Value, api.MaxKeys)
	if err := jsonscan.Scan([]byte(body), r.Keys(), values); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r, values, r.Check(values)
}

func TestCheck(t *testing.T) {
	many := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	const ok = ""
	tests := []struct {
		path, body string
		code       string // ok for none
		param      string
	}{
		{"/v1/chat/completions", `{"model":"m","messages":[{}]}`, ok, ""},
		{"/v1/chat/completions", `{"messages":[{}]}`, ok, ""}, // a default model may exist
		{"/v1/chat/completions", `{"model":null,"stream":null,"messages":[{}]}`, ok, ""},
		{"/v1/chat/completions", `{"model":7,"messages":[{}]}`, "invalid_type", "model"},
		{"/v1/chat/completions", `{"model":"m","stream":"yes","messages":[{}]}`, "invalid_type", "stream"},
		{"/v1/chat/completions", `{"model":"m"}`, "missing_required_parameter", "messages"},
		{"/v1/chat/completions", `{"model":"m","messages":null}`, "missing_required_parameter", "messages"},
		{"/v1/chat/completions", `{"model":"m","messages":[]}`, "missing_required_parameter", "messages"},
		{"/v1/chat/completions", `{"model":"m","messages":"hi"}`, "invalid_type", "messages"},
		{"/v1/chat/completions", `{"messages":[` + many(api.MaxMessages, "{}") + `]}`, ok, ""},
		{"/v1/chat/completions", `{"messages":[` + many(api.MaxMessages+1, "{}") + `]}`, "invalid_type", "messages"},
		{"/v1/completions", `{"prompt":"x"}`, ok, ""},
		{"/v1/completions", `{"prompt":[1,2]}`, ok, ""},
		{"/v1/completions", `{"prompt":{}}`, "invalid_type", "prompt"},
		{"/v1/completions", `{"prompt":""}`, "missing_required_parameter", "prompt"},
		{"/v1/responses", `{"input":"x"}`, ok, ""},
		{"/v1/responses", `{"input":5}`, "invalid_type", "input"},
		{"/v1/embeddings", `{"input":"x"}`, ok, ""},
		{"/v1/embeddings", `{"input":[""]}`, ok, ""},
		{"/v1/embeddings", `{"input":[]}`, "missing_required_parameter", "input"},
		{"/v1/embeddings", `{"input":""}`, "missing_required_parameter", "input"},
		{"/v1/embeddings", `{"input":5}`, "invalid_type", "input"},
		{"/v1/embeddings", `{"input":[` + many(2048, `"a"`) + `]}`, ok, ""},
		{"/v1/embeddings", `{"input":[` + many(2049, `"a"`) + `]}`, "invalid_type", "input"},
		{"/v1/embeddings", `{"input":[` + many(5000, `1`) + `]}`, ok, ""}, // one input of 5000 tokens
		{"/v1/embeddings", `{"input":[` + many(2049, `[1]`) + `]}`, "invalid_type", "input"},
		{"/v1/audio/speech", `{"input":"x","voice":"a"}`, ok, ""},
		{"/v1/audio/speech", `{"input":"x"}`, "missing_required_parameter", "voice"},
		{"/v1/images/generations", `{"prompt":"x"}`, ok, ""},
		{"/v1/images/generations", `{"prompt":["x"]}`, "invalid_type", "prompt"},
		{"/v1/tokenize", `{"content":"x"}`, ok, ""},
		{"/v1/detokenize", `{"tokens":[1]}`, ok, ""},
		{"/v1/messages", `{"max_tokens":5,"messages":[{}]}`, ok, ""},
		{"/v1/messages", `{"messages":[{}]}`, "missing_required_parameter", "max_tokens"},
		{"/v1/messages", `{"max_tokens":0,"messages":[{}]}`, "invalid_type", "max_tokens"},
		{"/v1/messages", `{"max_tokens":"5","messages":[{}]}`, "invalid_type", "max_tokens"},
		{"/v1/messages/count_tokens", `{"messages":[{}]}`, ok, ""},
		{"/v1/rerank", `{"query":"q","documents":["d"]}`, ok, ""},
		{"/v1/rerank", `{"query":"q","documents":["d"],"top_n":9}`, ok, ""},
		{"/rerank", `{"query":"q","documents":["d"],"top_n":0}`, "invalid_type", "top_n"},
		{"/v2/rerank", `{"query":"q","documents":["d"],"top_n":-1e99}`, "invalid_type", "top_n"},
		{"/v1/rerank", `{"query":"q","documents":["d"` + strings.Repeat(`,"d"`, 2048) + `]}`, "invalid_type", "documents"},
		{"/v1/reranker", `{"query":"","documents":["d"]}`, "missing_required_parameter", "query"},
		{"/reranking", `{"query":"q","documents":[]}`, "missing_required_parameter", "documents"},
		{"/api/chat", `{"model":"m"}`, ok, ""},
		{"/api/chat", `{"model":"m","messages":"x"}`, "invalid_type", "messages"},
		{"/api/generate", `{"model":"m","prompt":""}`, ok, ""},
		{"/api/embed", `{"model":"m","input":{}}`, "invalid_type", "input"},
		{"/api/show", `{"name":"m"}`, ok, ""},
		{"/api/show", `{"name":5}`, "invalid_type", "model"},
		{"/v1/load", `{"model_name":5}`, "invalid_type", "model_name"},
		{"/v1/unload", `{"model_name":null}`, ok, ""},
		{"/v1/internal/pin", `{"model_name":"m","pinned":false}`, ok, ""},
		{"/v1/internal/pin", `{"model_name":"m"}`, "missing_required_parameter", "pinned"},
		{"/v1/internal/aliases", `{"alias":"a","target":"m"}`, ok, ""},
		{"/v1/internal/set", `{"":5,"ctx_size":4096}`, ok, ""},
	}
	for _, tt := range tests {
		_, _, e := checkFields(t, tt.path, tt.body)
		switch {
		case tt.code == ok && e != nil:
			t.Errorf("%s %.80s: refused: %v", tt.path, tt.body, e)
		case tt.code != ok && (e == nil || e.Code != tt.code || e.Param != tt.param || e.Status != 400):
			t.Errorf("%s %.80s: %+v, want %s of %s", tt.path, tt.body, e, tt.code, tt.param)
		}
	}
}

func TestModelNameAndStream(t *testing.T) {
	tests := []struct {
		path, body, model string
		stream            bool
	}{
		{"/v1/chat/completions", `{"model":"m","messages":[1],"stream":true}`, "m", true},
		{"/v1/chat/completions", `{"model":"m","messages":[1],"stream":null}`, "m", false},
		{"/api/chat", `{"model":"m"}`, "m", true},
		{"/api/chat", `{"model":"m","stream":false}`, "m", false},
		{"/api/show", `{"name":"n"}`, "n", false},
		{"/api/show", `{"name":"n","model":"m"}`, "m", false},
		{"/v1/load", `{"model":"m"}`, "m", false},
		{"/v1/load", `{"model":"m","model_name":"n"}`, "n", false},
		{"/v1/unload", `{}`, "", false},
		{"/api/show", `{"name":"n","model":""}`, "n", false},
	}
	for _, tt := range tests {
		r, values, e := checkFields(t, tt.path, tt.body)
		if e != nil {
			t.Errorf("%s %s: %v", tt.path, tt.body, e)
		}
		if got := r.ModelName(values).String(); got != tt.model || r.Stream(values) != tt.stream {
			t.Errorf("%s %s: model %q, stream %v", tt.path, tt.body, got, r.Stream(values))
		}
	}
	// An empty name is not an absent one: /unload takes that for all models.
	if r, values, _ := checkFields(t, "/v1/unload", `{"model_name":""}`); !r.ModelName(values).Set() {
		t.Error("an empty name is taken for none")
	}
}

func TestCheckForm(t *testing.T) {
	part := func(name, value string) string {
		return fmt.Sprintf("--B\r\nContent-Disposition: form-data; name=%q\r\n\r\n%s\r\n", name, value)
	}
	tests := []struct {
		path, body, param string
	}{
		{"/v1/audio/transcriptions", part("file", "x") + part("model", "m"), ""},
		{"/v1/audio/transcriptions", part("model", "m"), "file"},
		{"/v1/audio/translations", part("file", ""), "file"},
		{"/v1/images/edits", part("image", "x") + part("prompt", "p"), ""},
		{"/v1/images/edits", part("image[]", "x") + part("prompt", "p"), ""},
		{"/v1/images/edits", part("prompt", "p"), "image"},
		{"/v1/images/variations", part("image", "x"), ""},
		{"/v1/images/variations", part("prompt", "p"), "image"},
	}
	for _, tt := range tests {
		r := router.Match("POST", tt.path).Route
		parts := make([]jsonscan.Part, api.MaxKeys)
		if err := jsonscan.Multipart([]byte(tt.body+"--B--\r\n"), "B", r.Keys(), parts); err != nil {
			t.Fatal(err)
		}
		switch e := r.CheckForm(parts); {
		case tt.param == "" && e != nil:
			t.Errorf("%s: refused: %v", tt.path, e)
		case tt.param != "" && (e == nil || e.Param != tt.param || e.Kind != api.MissingRequiredParameter):
			t.Errorf("%s: %+v, want %s missing", tt.path, e, tt.param)
		}
	}
}

func TestWrongTypeNamesTheExpectedType(t *testing.T) {
	for _, tt := range []struct{ path, body, want string }{
		{"/v1/embeddings", `{"input":5}`, "Parameter 'input' is required and must be a string or array, not number."},
		{"/v1/embeddings", `{}`, "Parameter 'input' is required and must be a string or array."},
		{"/v1/embeddings", `{"input":""}`, "'input' must not be empty."},
		{"/v1/embeddings", `{"input":"a","stream":1}`, "'stream' must be a JSON boolean, not number."},
		{"/v1/internal/pin", `{"pinned":"true"}`, "Parameter 'pinned' is required and must be a boolean, not string."},
	} {
		if _, _, e := checkFields(t, tt.path, tt.body); e == nil || e.Message != tt.want {
			t.Errorf("%s %s: %v", tt.path, tt.body, e)
		}
	}
}
