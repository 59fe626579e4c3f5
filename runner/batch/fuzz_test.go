package batch

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzParse checks that every parsed request is valid JSON with the reported number of inputs, and that the call made
// from it is too.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"input":"a"}`, `{"model":"m","input":["a","\u00e9\n",[1,2]],"encoding_format":"base64","user":{"y":[1]},"dimensions":8}`, `{"input":[1,-2]}`,
		`{"input":[]}`, `{"input":["a",]}`, `{"input":"\ud800"}`, " { \"input\" : [ [ 0 ] ] } ",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var p parsed
		if !p.parse(body) {
			return
		}
		if !json.Valid(body) {
			t.Fatalf("accepted: %q", body)
		}
		made := p.appendBody(nil, p.inputs)
		var q struct{ Input []json.RawMessage }
		if err := json.Unmarshal(made, &q); err != nil || len(q.Input) != len(p.inputs) || len(q.Input) == 0 {
			t.Fatalf("%q became %q: %v", body, made, err)
		}
		for i, in := range p.inputs {
			var text string
			if !in.tokens && (json.Unmarshal(in.raw, &text) != nil || text != string(in.text)) {
				t.Fatalf("input %d of %q is %q, read as %q", i, body, text, in.text)
			}
		}
	})
}

// FuzzReadAnswer checks that the embeddings found are parts of the answer and can be written again.
func FuzzReadAnswer(f *testing.F) {
	f.Add(fakeAnswer([]string{"a", "b"}, false), 2)
	f.Add(fakeAnswer([]string{"a"}, true), 1)
	f.Add([]byte(`{"data":[{"index":0,"embedding":[[1,2],[3]]}]}`), 1)
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		if n < 1 || n > 16 {
			return
		}
		out := make([][]byte, n)
		if readAnswer(body, out) != nil {
			return
		}
		for i, e := range out {
			if !bytes.Contains(body, e) || len(e) == 0 {
				t.Fatalf("embedding %d is %q", i, e)
			}
			if _, bad := unusable(nil, e); bad {
				continue
			}
			if e[0] == '[' {
				if _, bad := unusable(nil, appendBase64(nil, e)); bad {
					t.Fatalf("%s has no base64 form", e)
				}
				continue
			}
			raw, _ := appendRaw(nil, e)
			numbers := appendNumbers(nil, raw)
			if _, bad := unusable(nil, numbers); bad {
				t.Fatalf("%x became %s", raw, numbers)
			}
			if back, _ := appendRaw(nil, appendBase64(nil, numbers)); !bytes.Equal(back, raw) {
				t.Fatalf("%x became %x", raw, back)
			}
		}
	})
}
