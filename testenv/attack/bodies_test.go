package attack

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestBodies sends the real llama-server, through every dialect and /upstream, what ends it, hangs it or makes it fetch:
// each is refused, nothing is fetched, and the engine's process stays the same and serves.
func TestBodies(t *testing.T) {
	testenv.Engines(t)
	s := testenv.Start(t, testenv.Spec{
		Models: "models:\n  see: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, mmproj: .cache/models/tiny-mmproj.gguf, device: cpu, hosts: [local], " +
			"options: {ctx_size: 1024, llamacpp_args: \"-np 2 -t 1\"}}\n" + calls.LocalHost,
		Args: []string{withKeys(t)},
	})
	fetched := newCanary(t)
	const hello = `{"model":"see","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`
	serves := func() {
		t.Helper()
		if a := call(t, "POST", s.URL+"/v1/chat/completions", hello, bearer(inferKey)); !a.OK() {
			t.Fatalf("the model does not serve: %v", a)
		}
	}
	serves()
	before := pids(t, s.URL, 1)

	url := fetched.URL + "/x"
	escaped := strings.ReplaceAll(strings.Replace(url, "http", `\u0068ttp`, 1), "/", `\/`)
	for _, u := range []string{url, escaped} {
		for _, part := range []string{
			`{"type":"image_url","image_url":{"url":"` + u + `"}}`, `{"type":"image_url","image_url":"` + u + `"}`,
			`{"type":"image_url","image_\u0075rl":{"\u0075rl":"` + u + `"}}`, `{"type":"image_url","image_url":{"url":"data:image/png;base64,AA","url":"` + u + `"}}`,
			`{"type":"input_video","input_video":{"url":"` + u + `"}}`, `{"type":"input_video","input_video":{"data":"` + u + `"}}`,
			`{"type":"input_audio","input_audio":{"data":"` + u + `","format":"wav"}}`, `{"type":"input_audio","input_audio":{"url":"` + u + `","format":"wav"}}`,
			`{"type":"audio_url","audio_url":{"url":"` + u + `"}}`, `{"type":"video_url","video_url":{"url":"` + u + `"}}`,
			`{"type":"text","type":"image_url","text":"x","image_url":{"url":"` + u + `"}}`,
		} {
			body := `{"model":"see","max_tokens":2,"messages":[{"role":"user","content":[` + part + `]}]}`
			refused(t, part, call(t, "POST", s.URL+"/v1/chat/completions", body, bearer(inferKey)), 400)
			for _, path := range []string{"/v1/chat/completions", "//v1/chat/completions", "/v1/chat%2Fcompletions", "/apply-template"} {
				a := call(t, "POST", s.URL+"/upstream/see"+path, body, bearer(ownerKey))
				if a.OK() {
					t.Errorf("%s through /upstream: %v", part, a)
				}
			}
		}
		refused(t, "messages", call(t, "POST", s.URL+"/v1/messages", `{"model":"see","max_tokens":2,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"`+u+`"}}]}]}`, bearer(inferKey)), 400)
		refused(t, "responses", call(t, "POST", s.URL+"/v1/responses", `{"model":"see","input":[{"role":"user","content":[{"type":"input_image","image_url":"`+u+`"}]}]}`, bearer(inferKey)), 400)
		refused(t, "Ollama", call(t, "POST", s.URL+"/api/chat", `{"model":"see","messages":[{"role":"user","content":"x","images":["`+u+`"]}]}`, bearer(inferKey)), 400)
	}

	notNumbers := base64.StdEncoding.EncodeToString([]byte("RIFF\x24\xfa\x00\x00WAVEfmt \x10\x00\x00\x00\x03\x00\x01\x00\x80\x3e\x00\x00\x00\xfa\x00\x00\x04\x00\x20\x00data\x00\xfa\x00\x00" + strings.Repeat("\x00\x00\xc0\x7f", 16_000)))
	for _, data := range []string{ // one sample ends llama-server; engines read base64 to the first line end; NaN stays in the cache that all share
		"UklGRiYAAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YQIAAAABAA==", `UklGRiYAAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YQB9AAAB\nAAAA`,
		notNumbers,
	} {
		body := `{"model":"see","max_tokens":2,"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"format":"wav","data":"` + data + `"}}]}]}`
		for key, path := range map[string]string{inferKey: "/v1/chat/completions", ownerKey: "/upstream/see/v1/chat/completions"} {
			refused(t, fmt.Sprintf("%s %.80s", path, data), call(t, "POST", s.URL+path, body, bearer(key)), 400)
		}
	}

	for _, head := range []string{"\x53\x80\xf6\x34ftyp", "\x00\x01\x02\x00ftyp", "P6\n#ftyp\n"} { // pictures to llama-server, the first ends it
		data := base64.StdEncoding.EncodeToString([]byte(head + strings.Repeat("\x00", 80) + "PICT\x00\x40\x00\x40" + strings.Repeat("\x00", 9) + "\x07" + strings.Repeat("\x00", 42)))
		body := `{"model":"see","max_tokens":2,"messages":[{"role":"user","content":[{"type":"input_video","input_video":{"data":"` + data + `"}}]}]}`
		for key, path := range map[string]string{inferKey: "/v1/chat/completions", ownerKey: "/upstream/see/v1/chat/completions"} {
			refused(t, path+" a video that is a picture", call(t, "POST", s.URL+path, body, bearer(key)), 400)
		}
	}

	parens := strings.Repeat("(", 30_000) + `\"a\"` + strings.Repeat(")", 30_000)
	for _, field := range []string{
		`"grammar":"root ::= ` + parens + `"`, `"grammar":"root ::= \"a\"{2,1}"`, `"grammar":"root ::= (\"a\"{0,40}){0,40}"`,
		`"chat_parser":"{\"parsers\":[{\"type\":\"sequence\",\"children\":[0]}],\"rules\":{},\"root\":0}"`, `"chat\u005fparser":"{}"`,
		`"n_probs":100000`, `"logprobs":100000`, `"dry_multiplier":1,"dry_penalty_last_n":2147483647`, `"n":100000`, `"id_slot":0`,
		`"json_schema":{"type":"string","pattern":"^+[a-z]$"}`, `"json_schema":{"type":"array","minItems":9,"maxItems":2,"items":{"type":"string"}}`,
		`"json_schema":{"type":"integer","minimum":9223372036854775807}`, `"dry_sequence_breakers":["` + strings.Repeat("a", 300) + `"]`,
		`"json_schema":{"allOf":[{"$ref":"#/allOf/0"}]}`, `"json_schema":{"allOf":[{"$ref":"#/allOf/00"}]}`,
		`"grammar":"root ::= ` + strings.Repeat(`[^x]* `, 1000) + `"`,
		`"grammar":"root ::= s \"!\"\ns ::= [a-z ] s? s?"`, `"grammar":"root ::= x* \"!\"\nx ::= [a-z ] | [a-z ] | [a-z ]"`,
		`"grammar":"root ::= e root \"x\" | \"y\"\ne ::= f f\nf ::= \"a\"?"`, `"json_schema":{"type":"string","pattern":"^([a-z]|[a-z]|[a-z])*$"}`,
		`"json_schema":` + tree(`{"type":"object","properties":{"l":{"$ref":"#/$defs/e"},"op":{"const":"+"}},"required":["l","op"]},`),
		`"json_schema":` + levels(12, `{"type":["object",null,null],"properties":{"a":`, "}}"), `"json_schema":` + levels(12, `{"type":[["object","object"]],"properties":{"a":`, "}}"),
		`"json_schema":{"$ref":"#/$defs/d0","$defs":{` + steps(12, `"d%d":{"properties":{"a":{"allOf":[{"$ref":"#/$defs/d%[2]d"},{"$ref":"#/$defs/d%[2]d"},{"$ref":"#/$defs/d%[2]d"}]}}},`) + `"d12":{}}}`,
		`"json_schema":{"items":[{}],"properties":{"a":{"$ref":"#/items/0"},"b":{"$ref":"#/items/00"}}}`,
		`"grammar":"root ::= a0\n` + steps(30, `a%d ::= a%[2]d | a%[2]d\n`) + `a30 ::= \"x\""`,
		`"samplers":"` + strings.Repeat("e", 6000) + `"`, `"samplers":["dry"` + strings.Repeat(`,"dry"`, 63) + `]`,
		`"samplers":["infill"],"ignore_eos":true`, `"samplers":["\u0069nfill"]`, `"samplers":["Infill"]`, `"samplers":"ki"`, `"samplers":["no such sampler"]`,
		`"prompt":["a"` + strings.Repeat(`,"a"`, 30_000) + `]`, `"prompt":["a"` + strings.Repeat(`,"a"`, 100) + `],"stop":["` + strings.Repeat("s", 20_000) + `"]`,
		`"prompt":"` + strings.Repeat("a", 30_000) + `"`, `"prompt":["` + strings.Repeat(`\u0061`, 30_000) + `"]`,
		`"temperature":1e400`, `"suffix":"\ud800"`, `"temperature":"hot"`,
		`"grammar":"root ::= [^\\x00-\\U000F0000\\U000F0002-\\U007FFFFF]","top_k":2`, `"grammar":"root ::= !<[5]> \"a\"","top_k":60`,
		`"grammar":"root ::= [^\\x00-\\U0003FFFF\\U00080000-\\U003FFFFF\\U0007FFFF-\\U00040000]","top_k":2`, `"prompt":[""],"n":4`,
	} {
		body := `{"model":"see","max_tokens":2,"prompt":"hi",` + field + `}`
		for key, path := range map[string]string{inferKey: "/v1/completions", ownerKey: "/upstream/see/completion"} {
			refused(t, path+" "+field[:min(len(field), 60)], call(t, "POST", s.URL+path, body, bearer(key)), 400)
		}
	}
	for _, pattern := range []string{"^+[a-z]$", "^{2}times$", "^{,5}a$", "^]$", "^}$", "^a{2,1}$", "^(a?){1000}$", "^((a{0,100}){0,100}){0,100}$"} {
		schema := `{"type":"string","pattern":"` + pattern + `"}`
		refused(t, pattern, call(t, "POST", s.URL+"/v1/chat/completions", hello[:len(hello)-1]+`,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":`+schema+`}}}`, bearer(inferKey)), 400)
		refused(t, "Ollama "+pattern, call(t, "POST", s.URL+"/api/chat", `{"model":"see","stream":false,"messages":[{"role":"user","content":"x"}],"format":`+schema+`}`, bearer(inferKey)), 400)
	}
	for _, field := range []string{
		`"add_generation_prompt":false,"n":2`,
		`"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"integer"}}},"chat_template_kwargs":{"controls":{"length":"<|end_of_text|>"}}`,
	} {
		refused(t, field, call(t, "POST", s.URL+"/v1/chat/completions", hello[:len(hello)-1]+`,`+field+`}`, bearer(inferKey)), 400)
	}
	letters := strings.Repeat("a", 30_000)
	refused(t, "Ollama, a long word", call(t, "POST", s.URL+"/api/chat", `{"model":"see","stream":false,"messages":[{"role":"user","content":"`+letters+`"}]}`, bearer(inferKey)), 400)
	refused(t, "Ollama, a long word to complete", call(t, "POST", s.URL+"/api/generate", `{"model":"see","stream":false,"prompt":"`+letters+`"}`, bearer(inferKey)), 400)
	if a := call(t, "POST", s.URL+"/v1/completions", `{"model":"see","max_tokens":8,"prompt":"hi","json_schema":`+tree("")+`}`, bearer(inferKey)); !a.OK() {
		t.Errorf("a schema that contains itself: %v", a)
	}
	for path, body := range map[string]string{
		"/v1/detokenize": `{"model":"see","tokens":[99999999]}`, "/v1/tokenize": `{"model":"see","content":null,"content":"\udc00"}`,
		"/v1/chat/completions": `{"model":"see","messages":[{"role":5,"content":"x"}]}`, "/upstream/see/detokenize": `{"tokens":[99999999]}`,
	} {
		key := inferKey
		if strings.HasPrefix(path, "/upstream") {
			key = ownerKey
		}
		a := call(t, "POST", s.URL+path, body, bearer(key))
		refused(t, path, a, 400)
		if strings.Contains(string(a.Body), "json.exception") || strings.Contains(string(a.Body), "_M_") {
			t.Errorf("%s tells what the engine wrote: %v", path, a)
		}
	}
	serves()
	if after := pids(t, s.URL, 1); after != before {
		t.Errorf("the engine was replaced: %s, before %s", after, before)
	}
}

// tree is the schema of a tree whose branches end in numbers; further are more
// forms that a branch may have.
func tree(further string) string {
	return `{"type":"object","properties":{"root":{"$ref":"#/$defs/e"}},"required":["root"],"$defs":{"e":{"anyOf":[` + further +
		`{"type":"object","properties":{"l":{"$ref":"#/$defs/e"},"op":{"const":"-"}},"required":["l","op"]},{"type":"number"}]}}}`
}

// levels is a schema of so many levels.
func levels(n int, before, after string) string {
	return strings.Repeat(before, n) + `{"type":"string"}` + strings.Repeat(after, n)
}

// steps is a format for each number below n and the number behind it.
func steps(n int, format string) (text string) {
	for i := range n {
		text += fmt.Sprintf(format, i, i+1)
	}
	return text
}
