package ollama_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/ollama"
)

func parse(t *testing.T, body string) *ollama.Request {
	t.Helper()
	q, err := ollama.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// same compares JSON texts.
func same(t *testing.T, got []byte, want string) {
	t.Helper()
	var g, w any
	if err := errors.Join(json.Unmarshal(got, &g), json.Unmarshal([]byte(want), &w)); err != nil || !reflect.DeepEqual(g, w) {
		t.Errorf("got  %s\nwant %s\n%v", got, want, err)
	}
}

func TestChatRequest(t *testing.T) {
	for name, c := range map[string]struct {
		body, want string
		stream     bool
	}{
		"messages": {
			body: `{"model":"x","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a","thinking":"t"}]}`,
			want: `{"model":"m","stream":false,"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},
				{"role":"assistant","content":"a","reasoning_content":"t"}]}`,
		},
		"stream": {
			body: `{"messages":[{"role":"user","content":"u"}]}`, stream: true,
			want: `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"u"}]}`,
		},
		"options": {
			body: `{"messages":[{"role":"user","content":"u"}],"options":{"num_predict":7,"temperature":0.5,"top_k":3,"stop":["a","b"],"seed":1,"num_keep":2,
				"num_gpu":9,"num_ctx":512,"id_slot":3,"repeat_penalty":null}}`,
			want: `{"model":"m","stream":false,"messages":[{"role":"user","content":"u"}],"max_tokens":7,"temperature":0.5,"top_k":3,"stop":["a","b"],"seed":1,"n_keep":2}`,
		},
		"no limit": {
			body: `{"messages":[{"role":"user","content":"u"}],"options":{"num_predict":-1}}`,
			want: `{"model":"m","stream":false,"messages":[{"role":"user","content":"u"}]}`,
		},
		"JSON": {
			body: `{"messages":[{"role":"user","content":"u"}],"format":"json","think":false}`,
			want: `{"model":"m","stream":false,"messages":[{"role":"user","content":"u"}],"response_format":{"type":"json_object"},
				"chat_template_kwargs":{"enable_thinking":false}}`,
		},
		"schema": {
			body: `{"messages":[{"role":"user","content":"u"}],"format":{"type":"object"},"think":"high"}`,
			want: `{"model":"m","stream":false,"messages":[{"role":"user","content":"u"}],
				"response_format":{"type":"json_schema","json_schema":{"name":"format","schema":{"type":"object"}}},
				"chat_template_kwargs":{"enable_thinking":true,"reasoning_effort":"high"}}`,
		},
		"images": {
			body: `{"messages":[{"role":"user","content":"u","images":["iVBORw0KGgoAAA","/9j/4AAQ","data:image/png;base64,AA"]},{"role":"user","content":"","images":["R0lGODlh"]}]}`,
			want: `{"model":"m","stream":false,"messages":[{"role":"user","content":[{"type":"text","text":"u"},
				{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAA"}},{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,/9j/4AAQ"}},
				{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]},
				{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/gif;base64,R0lGODlh"}}]}]}`,
		},
		"tools": {
			body: `{"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"messages":[{"role":"user","content":"u"},
				{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}},{"function":{"name":"g","arguments":"{}"}}]},
				{"role":"tool","content":"of g","tool_name":"g"},{"role":"tool","content":"of f"},
				{"role":"assistant","content":"","tool_calls":[{"id":"own","function":{"name":"f"}}]},{"role":"tool","content":"r","tool_call_id":"own"}]}`,
			want: `{"model":"m","stream":false,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"messages":[{"role":"user","content":"u"},
				{"role":"assistant","content":"","tool_calls":[{"id":"call_0","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
					{"id":"call_1","type":"function","function":{"name":"g","arguments":"{}"}}]},
				{"role":"tool","content":"of g","tool_call_id":"call_1"},{"role":"tool","content":"of f","tool_call_id":"call_0"},
				{"role":"assistant","content":"","tool_calls":[{"id":"own","type":"function","function":{"name":"f","arguments":"{}"}}]},
				{"role":"tool","content":"r","tool_call_id":"own"}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(t, c.body).Chat("m", c.stream)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, c.want)
		})
	}
}

func TestGenerateRequest(t *testing.T) {
	for body, want := range map[string]string{
		`{"prompt":"p"}`: ollama.ChatPath + ` {"model":"m","stream":false,"messages":[{"role":"user","content":"p"}]}`,
		`{"prompt":"p","system":"s","context":[1,2]}`: ollama.ChatPath +
			` {"model":"m","stream":false,"messages":[{"role":"system","content":"s"},{"role":"user","content":"p"}]}`,
		`{"prompt":"p","raw":true,"system":"not seen"}`: ollama.CompletionPath + ` {"model":"m","stream":false,"prompt":"p"}`,
	} {
		got, path, err := parse(t, body).Generate("m", false)
		if err != nil || path != want[:len(path)] {
			t.Errorf("%s: %s, %v", body, path, err)
			continue
		}
		same(t, got, want[len(path):])
	}
}

func TestBadRequests(t *testing.T) {
	for body, want := range map[string]api.Kind{
		`{"messages":5}`:                          api.InvalidType,
		`{"messages":[{"content":["a"]}]}`:        api.InvalidType,
		`{`:                                       api.InvalidJSON,
		`{"template":"t"}`:                        api.UnsupportedParameter,
		`{"suffix":"s"}`:                          api.UnsupportedParameter,
		`{"keep_alive":"soon"}`:                   api.InvalidType,
		`{"keep_alive":"nan"}`:                    api.InvalidType,
		`{"keep_alive":"-inf"}`:                   api.InvalidType,
		`{"keep_alive":[]}`:                       api.InvalidType,
		`{"keep_alive":"1e3"}`:                    api.InvalidType,
		`{"keep_alive":"1_000"}`:                  api.InvalidType,
		`{"keep_alive":"+5"}`:                     api.InvalidType,
		`{"options":{"seed":"7"}}`:                api.InvalidType,
		`{"options":{"num_ctx":"big"}}`:           api.InvalidType,
		`{"options":{"num_ctx":-1}}`:              api.InvalidType,
		`{"options":{"num_predict":"all"}}`:       api.InvalidType,
		`{"format":"xml"}`:                        api.InvalidType,
		`{"think":3}`:                             api.InvalidType,
		`{"messages":[{"images":["not one"]}]}`:   api.InvalidType,
		`{"raw":true,"images":["iVBORw0KGgoAA"]}`: api.UnsupportedParameter,
	} {
		q, err := ollama.Parse([]byte(body))
		for _, step := range []func() error{
			func() error { _, _, err := q.KeepAlive(); return err },
			func() error { _, err := q.Context(); return err },
			func() error { _, err := q.Chat("m", false); return err },
			func() error { _, _, err := q.Generate("m", false); return err },
		} {
			if err == nil {
				err = step()
			}
		}
		if err == nil || api.As(err).Kind != want {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
}

func TestKeepAlive(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`0`: 0, `"0"`: 0, `"0s"`: 0, `90`: 90 * time.Second, `0.5`: time.Second / 2, `"5m"`: 5 * time.Minute, `"24h"`: 24 * time.Hour, `"30"`: 30 * time.Second,
		`-1`: -1, `"-1"`: -1, `"-1m"`: -1,
	} {
		d, set, err := parse(t, `{"keep_alive":`+text+`}`).KeepAlive()
		if d != want || !set || err != nil {
			t.Errorf("%s: %v %v %v", text, d, set, err)
		}
	}
	if d, set, err := parse(t, `{"keep_alive":1e300}`).KeepAlive(); d < 24*time.Hour || !set || err != nil {
		t.Errorf("very long: %v %v %v", d, set, err)
	}
	for _, body := range []string{`{}`, `{"keep_alive":null}`} {
		if _, set, err := parse(t, body).KeepAlive(); set || err != nil {
			t.Errorf("%s: %v %v", body, set, err)
		}
	}
}

func TestTexts(t *testing.T) {
	for input, want := range map[string]string{
		`"a"`: `{"model":"m","input":"a","truncate":true}`, `["a","b"]`: `{"model":"m","input":["a","b"],"truncate":true}`, `""`: ``, `[ ]`: ``, `null`: ``, ``: ``,
	} {
		got, err := parse(t, `{}`).Texts("m", json.RawMessage(input))
		if err != nil || (got == nil) != (want == "") {
			t.Errorf("%s: %s, %v", input, got, err)
		}
		if got != nil {
			same(t, got, want)
		}
	}
	got, err := parse(t, `{"dimensions":5,"truncate":false}`).Texts("m", json.RawMessage(`"a"`))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, `{"model":"m","input":"a","dimensions":5}`)
}

// A text of mark-up takes no more bytes for the engine than the client sent.
func TestMarkupKeepsItsSize(t *testing.T) {
	text := strings.Repeat("<&>", 1000)
	body, err := parse(t, `{"model":"x","messages":[{"role":"user","content":"`+text+`"},
		{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"q":"`+text+`"}}}]}]}`).Chat("m", false)
	if err != nil || strings.Count(string(body), text) != 2 {
		t.Errorf("%d bytes for the engine: %.200s, %v", len(body), body, err)
	}
}
