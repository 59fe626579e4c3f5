package attack

import (
	"regexp"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// internals are words of the engine's libraries, which tell a client nothing.
var internals = regexp.MustCompile(`json\.exception|std::|_M_|initialize samplers|Automatic parser`)

// TestWrongTypes sends values of the wrong type in fields that are allowed to the real llama-server: each is a 400 in the
// gateway's words, whichever route it takes.
func TestWrongTypes(t *testing.T) {
	testenv.Engines(t)
	s := testenv.Start(t, testenv.Spec{
		Models: "models:\n" +
			"  see: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, hosts: [local], options: {ctx_size: 1024, llamacpp_args: \"-np 2 -t 1\"}}\n" +
			"  emb: {type: embedding, recipe: llamacpp, checkpoint: .cache/models/minilm-l6-v2.gguf, device: cpu, hosts: [local]}\n" +
			"  rank: {type: reranking, recipe: llamacpp, checkpoint: .cache/models/minilm-reranker.gguf, device: cpu, hosts: [local]}\n" + calls.LocalHost,
		Args: []string{withKeys(t)},
	})
	notTokens := []string{"[-5,1.5]", "[[-5,1.5]]", "[null]", "[true]", `[["a"]]`, "[[1,2],3]", "[1e2]", "[2147483648]", "[[]]", `[{"a":1}]`, "[[[1]]]"}
	schemas := []string{
		`{"type":"integer","exclusiveMinimum":"a"}`, `{"type":"integer","minimum":[]}`, `{"type":"string","minLength":"a"}`, `{"type":5}`, `{"type":["string",5]}`,
		`{"type":"zz"}`, `{"properties":5}`, `{"properties":{"a":5}}`, `{"anyOf":5}`, `{"anyOf":[5]}`, `{"enum":5}`, `{"type":"array","items":5}`,
		`{"type":"array","items":{},"maxItems":"a"}`, `{"type":"string","format":5}`, `{"$ref":"#/a/b"}`, `{"type":"object","additionalProperties":5}`, `{"$defs":5}`,
	}
	type field struct {
		name   string
		values []string
	}
	common := []field{
		{"json_schema", append([]string{"true", "5", `"zz"`, "[]"}, schemas...)},
		{"grammar", []string{"5", "{}", `"zz"`}},
		{"stop", []string{"5", "[5]", "[true]", "[[]]", "{}"}},
		{"samplers", []string{"[5]", "[null]", "{}"}},
		{"dry_sequence_breakers", []string{"[]", "[5]", `"a"`}},
		{"stream_options", []string{"5", `{"include_usage":"zz"}`}},
		{"reasoning_format", []string{"5", `"zz"`}},
		{"temperature", []string{`"zz"`, "[]", "{}"}}, {"n", []string{"0", `"zz"`}}, {"adaptive_decay", []string{"5", "-1"}},
	}
	chat := append([]field{
		{"chat_template_kwargs", []string{"5", "[]", `{"enable_thinking":"zz"}`}},
		{"messages", []string{"5", `["a"]`, `[{"role":5,"content":"x"}]`, `[{"content":"x"}]`, `[{"role":"user","content":5}]`, `[{"role":"assistant","tool_calls":5}]`}},
		{"tools", []string{"5", "[5]", `[{"type":"function"}]`, `[{"type":"function","function":{"name":5}}]`, `[{"type":"zz"}]`}},
		{"response_format", []string{"5", `{"type":5}`, `{"type":"zz"}`, `{"type":"json_schema","json_schema":5}`, `{"type":"json_object","schema":true}`,
			`{"type":"json_schema","json_schema":{"name":"x","schema":` + schemas[0] + `}}`}},
	}, common...)
	prompt := field{"prompt", append([]string{"5", "true", "{}"}, notTokens...)}
	for _, route := range []struct {
		path, rest string
		fields     []field
	}{
		{"/v1/chat/completions", `"model":"see","max_tokens":2,"messages":[{"role":"user","content":"hi"}],`, chat},
		{"/v1/completions", `"model":"see","max_tokens":2,"prompt":"hi",`, append([]field{prompt}, common...)},
		{"/upstream/see/completion", `"n_predict":2,`, []field{prompt}},
		{"/upstream/see/infill", `"n_predict":2,"input_prefix":"a","input_suffix":"b",`, []field{prompt}},
		{"/v1/responses", `"model":"see","max_output_tokens":2,"input":"hi",`, []field{
			{"input", []string{"5", "[5]", `[{"role":5,"content":"x"}]`, `[{"type":"reasoning","summary":[{"type":"summary_text"}]}]`}},
			{"text", []string{"5", `{"format":5}`, `{"format":{"type":"json_schema","schema":` + schemas[0] + `}}`}},
		}},
		{"/v1/messages", `"model":"see","max_tokens":2,"messages":[{"role":"user","content":"hi"}],`, []field{
			{"system", []string{"5", "[5]", `[{"type":"text","text":5}]`}}, {"stop_sequences", []string{"5", "[5]", "[true]"}},
		}},
		{"/v1/embeddings", `"model":"emb",`, []field{{"input", append([]string{"5", "{}", "[99999999]"}, notTokens...)}}},
		{"/upstream/emb/embedding", ``, []field{{"content", append([]string{"5", "true", "[]"}, notTokens...)}}},
		{"/api/embed", `"model":"emb",`, []field{{"input", append([]string{"5", "{}"}, notTokens...)}}},
		{"/v1/tokenize", `"model":"see",`, []field{{"content", []string{"5", "{}", "[null]", "[[1]]", "[1.5]", "[-5]"}}}},
		{"/upstream/see/tokenize", ``, []field{{"content", []string{"5", "true", "[null]", "[[1]]", "[1.5]"}}}},
		{"/v1/detokenize", `"model":"see",`, []field{{"tokens", []string{"5", `"zz"`, `["a"]`, "[null]", "[[1]]", "[1.5]", "[-5]", "[99999999]"}}}},
		{"/upstream/see/detokenize", ``, []field{{"tokens", []string{"5", `"zz"`, `["a"]`, "[null]", "[[1]]", "[1.5]", "[-5]"}}}},
		{"/v1/rerank", `"model":"rank","query":"q",`, []field{{"documents", []string{"5", "[5]", "[[1]]", "[null]", `[{"text":5}]`}}}},
		{"/upstream/rank/rerank", `"query":"q","documents":["a","b"],`, []field{{"top_n", []string{"-5", "1e30", `"zz"`}}, {"documents", []string{`[{"image_url":"http://a"}]`}}}},
		{"/api/chat", `"model":"see","stream":false,"messages":[{"role":"user","content":"hi"}],`, []field{
			{"format", append([]string{"5"}, schemas...)}, {"options", []string{"5", `{"stop":[5]}`, `{"temperature":"x"}`}},
		}},
	} {
		for _, f := range route.fields { // of a name that the body has already, the last counts
			for _, v := range f.values {
				what := route.path + " " + f.name + " " + v
				a := call(t, "POST", s.URL+route.path, "{"+route.rest+`"`+f.name+`":`+v+"}", bearer(ownerKey))
				refused(t, what, a, 400)
				if internals.Match(a.Body) {
					t.Errorf("%s tells what the engine wrote: %s", what, a.Body)
				}
			}
		}
	}
	for path, body := range map[string]string{
		"/v1/embeddings":           `{"model":"emb","input":[[1,2],[3]]}`,
		"/upstream/emb/embedding":  `{"content":["a",1,2]}`,
		"/upstream/see/completion": `{"n_predict":2,"prompt":["a",[1,"b"]]}`,
		"/upstream/see/tokenize":   `{"content":["a",1]}`,
		"/v1/detokenize":           `{"model":"see","tokens":[1,2]}`,
		"/v1/completions":          `{"model":"see","max_tokens":2,"prompt":"a","json_schema":{"type":"integer","exclusiveMinimum":3},"stream_options":{"include_usage":true}}`,
		"/v1/rerank":               `{"model":"rank","query":"q","documents":["a",{"text":"b"}],"texts":["c"],"top_n":1}`,
	} {
		if a := call(t, "POST", s.URL+path, body, bearer(ownerKey)); !a.OK() {
			t.Errorf("%s %s: %v", path, body, a)
		}
	}
}
