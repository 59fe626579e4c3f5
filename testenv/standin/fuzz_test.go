package main

import "testing"

func FuzzEmbedInputs(f *testing.F) {
	for _, seed := range []string{`"a"`, `["a","b"]`, `[1,2]`, `[[1],[2,3]]`, `["a",[1]]`, `[]`, `[null]`, `[[]]`, `[-1]`, `{}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		inputs, err := embedInputs(raw)
		if (err == nil) != (len(inputs) > 0) {
			t.Fatalf("%q: %d inputs, %v", raw, len(inputs), err)
		}
		for _, text := range inputs {
			if detokenize(tokenize(text)) != text {
				t.Fatalf("%q does not survive", text)
			}
		}
	})
}
