package attack

import (
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestBodies sends the real llama-server, through every dialect and /upstream, what makes it fetch or reaches into it: each is
// refused, nothing is fetched, and the engine's process stays the same and serves.
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
		text := `{"type":"text","text":"hi","image_url":{"url":"` + u + `"}}` // the URL is left out
		if a := call(t, "POST", s.URL+"/v1/chat/completions", strings.Replace(hello, `"hi"`, "["+text+"]", 1), bearer(inferKey)); !a.OK() {
			t.Errorf("%s: %v", text, a)
		}
		refused(t, "messages", call(t, "POST", s.URL+"/v1/messages", `{"model":"see","max_tokens":2,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"`+u+`"}}]}]}`, bearer(inferKey)), 400)
		refused(t, "responses", call(t, "POST", s.URL+"/v1/responses", `{"model":"see","input":[{"role":"user","content":[{"type":"input_image","image_url":"`+u+`"}]}]}`, bearer(inferKey)), 400)
		refused(t, "Ollama", call(t, "POST", s.URL+"/api/chat", `{"model":"see","messages":[{"role":"user","content":"x","images":["`+u+`"]}]}`, bearer(inferKey)), 400)
	}

	for _, field := range []string{
		`"chat_parser":"{\"parsers\":[{\"type\":\"sequence\",\"children\":[0]}],\"rules\":{},\"root\":0}"`, `"chat\u005fparser":"{}"`, `"id_slot":0`,
		`"lora":[{"id":0}]`, `"json_schema":{"$ref":"` + url + `"}`, `"json_schema":` + strings.Repeat("[", 200) + strings.Repeat("]", 200),
		`"grammar":"` + strings.Repeat("a", 300<<10) + `"`, `"prompt":[{"prompt_string":"x","multimodal_data":["` + url + `"]}]`,
	} {
		body := `{"model":"see","max_tokens":2,"prompt":"hi",` + field + `}`
		for key, path := range map[string]string{inferKey: "/v1/completions", ownerKey: "/upstream/see/completion"} {
			refused(t, path+" "+field[:min(len(field), 60)], call(t, "POST", s.URL+path, body, bearer(key)), 400)
		}
	}
	for path, body := range map[string]string{ // what the engine says about them is its own matter, but not its words
		"/v1/detokenize": `{"model":"see","tokens":[99999999]}`, "/v1/chat/completions": `{"model":"see","messages":[{"role":5,"content":"x"}]}`,
		"/v1/completions": `{"model":"see","prompt":"x","max_tokens":2,"json_schema":{"type":5}}`, "/v1/tokenize": `{"model":"see","content":"\udc00"}`,
	} {
		a := call(t, "POST", s.URL+path, body, bearer(inferKey))
		refused(t, path, a, 400)
		if strings.Contains(string(a.Body), "json.exception") || strings.Contains(string(a.Body), "_M_") {
			t.Errorf("%s reports what the engine wrote: %v", path, a)
		}
	}
	serves()
	if after := pids(t, s.URL, 1); after != before {
		t.Errorf("the engine was replaced: %s, before %s", after, before)
	}
}
