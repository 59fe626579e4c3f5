package batch

import (
	"encoding/json"
	"slices"
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
		p, ok := parse(body)
		if !ok {
			return
		}
		var sequences []sequence
		for _, in := range p.inputs {
			sequences = append(sequences, sequence{raw: in.raw})
		}
		made := callBody(p.model, p.dimensions, sequences)
		var q struct{ Input []json.RawMessage }
		if err := json.Unmarshal(made, &q); err != nil || len(q.Input) != len(p.inputs) || len(q.Input) == 0 {
			t.Fatalf("%q became %q: %v", body, made, err)
		}
		for i, in := range p.inputs {
			var text string
			if !in.isIDs && (json.Unmarshal(in.raw, &text) != nil || text != in.text) {
				t.Fatalf("input %d of %q is %q, read as %q", i, body, text, in.text)
			}
		}
	})
}

// FuzzReadResponse checks that the embeddings found can be written again in both forms.
func FuzzReadResponse(f *testing.F) {
	f.Add(fakeAnswer([]string{"a", "b"}, false), 2)
	f.Add(fakeAnswer([]string{"a"}, true), 1)
	f.Add([]byte(`{"data":[{"index":0,"embedding":[[1,2],[3]]}]}`), 1)
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		if n < 1 || n > 16 {
			return
		}
		out, err := readResponse(body, n)
		if err != nil {
			return
		}
		for _, e := range out {
			v, err := e.values()
			if err != nil {
				continue
			}
			for _, again := range [][]byte{appendBase64(nil, v), appendNumbers(nil, v)} {
				if back, err := embedding(again).values(); err != nil || !slices.Equal(back, v) {
					t.Fatalf("%s became %s: %v", e, again, err)
				}
			}
		}
	})
}
