package bodycheck

import (
	"strings"
	"testing"
)

// TestInputsWithPictures: exactly the form of llama-server's inputs with pictures passes, with pictures in base64 within the
// limits, to models that see.
func TestInputsWithPictures(t *testing.T) {
	png := picture(10, 10)
	const mark, refusal, invalid = "<__media__>", "unsupported_parameter", "invalid_type"
	input := func(prompt string, data ...string) string {
		return `{"prompt_string":"` + prompt + `","multimodal_data":["` + strings.Join(data, `","`) + `"]}`
	}
	many := func(n int, one string) []string {
		return strings.Split(strings.TrimSuffix(strings.Repeat(one+" ", n), " "), " ")
	}
	sees, blind, other := Model{Llama: true, Sees: true}, Model{Llama: true}, Model{Sees: true}
	for _, tt := range []struct {
		input string // of the list
		model Model
		want  string
	}{
		{input(mark, png), sees, ""},
		{`"a text",` + input("see "+mark+" and "+mark, png, png) + `,[1,2,"x"]`, sees, ""},
		{input(`\u003c__media__>`, png), sees, ""},
		{input(strings.Repeat(mark, 8), many(8, png)...), sees, ""},
		{input(mark, png), blind, refusal},
		{input(mark, png), other, refusal},
		// the picture
		{input(strings.Repeat(mark, 9), many(9, png)...), sees, invalid},
		{input(mark, png) + strings.Repeat(","+input(mark, png), 8), sees, invalid}, // nine over all inputs
		{input(mark, picture(14000, 14000)), sees, invalid},
		{input(mark, b64([]byte("no picture"))), sees, invalid},
		{input(mark, b64(sound(8000, 1))), sees, invalid},
		{input(mark, png+strings.Repeat("A", 28_000_000)), sees, invalid},
		{input(mark, "data:image/png;base64,"+png), sees, refusal},
		{input(mark, "http://a/x.png"), sees, refusal},
		{input(mark, `\u0068ttp:\/\/a`), sees, refusal},
		{input(mark, `file:///etc/passwd`), sees, refusal},
		{`{"prompt_string":"` + mark + `","multimodal_data":[{"url":"http://a"}]}`, sees, refusal},
		{`{"prompt_string":"` + mark + `","multimodal_data":"` + png + `"}`, sees, refusal},
		// the markers
		{input("no marker", png), sees, invalid},
		{input(mark+mark, png), sees, invalid},
		{`{"prompt_string":"x","multimodal_data":[]}`, sees, invalid},
		// the form
		{`{"prompt_string":"x"}`, sees, refusal},
		{`{"multimodal_data":["` + png + `"]}`, sees, refusal},
		{`{"prompt_string":["` + mark + `"],"multimodal_data":["` + png + `"]}`, sees, refusal},
		{`{"prompt_string":"` + mark + `","multimodal_data":["` + png + `"],"id_slot":1}`, sees, refusal},
		{`{"prompt_string":"` + mark + `","prompt_string":"` + mark + `","multimodal_data":["` + png + `"]}`, sees, refusal},
		{`{"prompt_string":"` + mark + `","multimodal_data":["` + png + `"],"multimodal_data":["http://a"]}`, sees, refusal},
		{`{}`, sees, refusal},
		{`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + png + `"}}`, sees, refusal},
		{input(mark, png) + `,7`, sees, invalid},
		{input(mark, png) + `,["a","b"]`, sees, invalid},
		{input(mark, png) + `,[[1]]`, sees, invalid},
		{`[` + input(mark, png) + `]`, sees, refusal},
	} {
		if _, _, err := check("embeddings", []byte(`{"input":[`+tt.input+`]}`), tt.model); code(err) != tt.want {
			t.Errorf("%.150s, %+v: %q, want %q", tt.input, tt.model, code(err), tt.want)
		}
	}
	for _, route := range []string{"completions", "tokenize"} {
		field := map[string]string{"completions": "prompt", "tokenize": "content"}[route]
		if _, _, err := check(route, []byte(`{"`+field+`":[`+input(mark, png)+`]}`), sees); code(err) != refusal {
			t.Errorf("%s: %v", route, err)
		}
	}
	if _, _, err := check("embeddings", []byte(`{"input":`+input(mark, png)+`}`), sees); code(err) != refusal {
		t.Errorf("an object that is in no list: %v", err)
	}
}
