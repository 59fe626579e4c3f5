package bodycheck

import (
	"fmt"
	"strings"
	"testing"
)

// Numbers that are infinite as floats of 32 bits, or make others so, decide about a token together with a grammar: the engine
// then picks what the grammar forbids, and ends.
func TestInfiniteLogits(t *testing.T) {
	for field, want := range map[string]string{
		`"logit_bias":[[1,1e6],["a",-1000000]]`: "", `"logit_bias":{"1":-100,"2":5.5}`: "", `"logit_bias":{}`: "", `"logit_bias":[]`: "", `"logit_bias":null`: "",
		`"logit_bias":[[1,1e39]]`: "invalid_type", `"logit_bias":[[1,1e300]]`: "invalid_type", `"logit_bias":{"1":1e7}`: "invalid_type", `"logit_bias":[[1,-1e39]]`: "invalid_type",
		`"logit_bias":[[1,"1e39"]]`: "invalid_type", `"logit_bias":[[1,2,1e39]]`: "invalid_type", `"logit_bias":[[1]]`: "invalid_type", `"logit_bias":[[-1,1]]`: "invalid_type",
		`"logit_bias":[{"a":1}]`: "invalid_type", `"logit_bias":7`: "invalid_type", `"logit_bias":"1"`: "invalid_type", `"logit_bias":{"1":[1]}`: "invalid_type",
		`"repeat_penalty":0`: "invalid_value", `"repeat_penalty":1e-300`: "invalid_value", `"repeat_penalty":0.5`: "",
		`"dry_multiplier":1e9`: "invalid_value", `"dry_multiplier":0`: "", `"dry_base":1e9`: "invalid_value", `"dry_base":1.75`: "",
		`"temperature":1e-40`: "invalid_type", `"temperature":1e-8`: "", `"temperature":0`: "", `"temperature":-1`: "", `"typical_p":-1`: "invalid_type", `"dynatemp_exponent":-1`: "invalid_type",
	} {
		body := `{"prompt":"x","grammar":"root ::= \"a\"",` + field + `}`
		if _, _, err := check("completions", []byte(body), llama); code(err) != want && !(want == "invalid_value" && err != nil) {
			t.Errorf("%s: %v, want %q", field, err, want)
		}
	}
}

// Encoders that keep a picture's ratio make more patches of a long one, whatever their limit of pixels.
func TestLongPictures(t *testing.T) {
	for size, want := range map[[2]uint32]string{{200, 1}: "", {1, 200}: "", {1080, 20000}: "", {201, 1}: "invalid_type", {3, 601}: "invalid_type", {250000, 1}: "invalid_type"} {
		body := fmt.Sprintf(`{"messages":[{"content":[{"type":"image_url","image_url":{"url":%q}}]}]}`, "data:image/png;base64,"+picture(size[0], size[1]))
		if _, _, err := check("chat", []byte(body), llama); code(err) != want {
			t.Errorf("%v: %v", size, err)
		}
	}
}

// What the model reads as text is the body without its media, for each prompt.
func TestTextBytes(t *testing.T) {
	text := strings.Repeat("hello ", 1000)
	media := picture(100, 100)
	for body, want := range map[string][2]int{
		`{"messages":[{"content":"` + text + `"}]}`: {6000, 6100},
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + media + `"}},{"type":"text","text":"` + text + `"}]}]}`: {6000, 6300},
		`{"messages":[{"y":[` + strings.Repeat("0,", 3000) + `0],"content":""}]}`:                                                                           {6000, 6100},
	} {
		if c, _, err := check("chat", []byte(body), llama); err != nil || c.TextBytes < want[0] || c.TextBytes > want[1] {
			t.Errorf("%.60s: %d, %v", body, c.TextBytes, err)
		}
	}
	for route, body := range map[string]string{ // the engine's bodies are yet to be written
		"ollama_chat": `{"messages":[{"content":"","images":["` + media + `"]}]}`, "responses": `{"input":"` + text + `"}`,
	} {
		if c, _, err := check(route, []byte(body), llama); err != nil || c.TextBytes != 0 {
			t.Errorf("%s: %d, %v", route, c.TextBytes, err)
		}
	}
	if c, _, err := check("completions", []byte(`{"prompt":["`+text+`","`+text+`"]}`), llama); err != nil || c.TextBytes < 6000 || c.TextBytes > 6100 {
		t.Errorf("two prompts: %d, %v", c.TextBytes, err)
	}
}
