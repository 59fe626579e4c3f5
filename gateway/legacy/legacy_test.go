package legacy

import (
	"encoding/json"
	"strings"
	"testing"
)

// Whatever an engine says, the response is a JSON text or an error, and a stream goes on.
func FuzzResponse(f *testing.F) {
	f.Add(`{"prompt":"a","logprobs":2}`, `{"choices":[{"text":" on","index":0,"logprobs":{"content":[{"token":" on","logprob":-0.5,"top_logprobs":[{"token":" on","logprob":-0.5}]}]},"finish_reason":null}]}`)
	f.Add(`{"prompt":["a","b"],"n":2,"logprobs":0}`, `{"choices":[{"text":"x","index":-1,"logprobs":{}},{"text":"y","index":99}]}`)
	f.Add(`{"prompt":"a","logprobs":1}`, `null`)
	f.Fuzz(func(t *testing.T, body, engine string) {
		r, err := Translate([]byte(body))
		if r == nil || err != nil {
			return
		}
		if !json.Valid(r.Body) {
			t.Errorf("%s: the engine gets %s", body, r.Body)
		}
		if text, err := r.Response([]byte(engine)); err == nil && !json.Valid(text) {
			t.Errorf("%s: %s", engine, text)
		}
		s := NewStream(r)
		out := string(s.End(s.Append(nil, []byte("data: "+engine+"\n\n"))))
		for event := range strings.SplitSeq(strings.TrimSuffix(out, "\n\n"), "\n\n") {
			data, ok := strings.CutPrefix(event, "data: ")
			if !strings.HasPrefix(event, ":") && (!ok || data != "[DONE]" && !json.Valid([]byte(data))) {
				t.Errorf("%q: %q", engine, out)
			}
		}
	})
}
