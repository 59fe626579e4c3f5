package responses_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"reveille/gateway/api"
	"reveille/gateway/bodycheck"
	"reveille/gateway/responses"
)

// same compares JSON texts.
func same(t *testing.T, got []byte, want string) {
	t.Helper()
	var g, w any
	if err := errors.Join(json.Unmarshal(got, &g), json.Unmarshal([]byte(want), &w)); err != nil || !reflect.DeepEqual(g, w) {
		t.Errorf("got  %s\nwant %s\n%v", got, want, err)
	}
}

// translate is the chat of a body that the gateway's check of chats accepts.
func translate(body string, stream bool) (chat []byte, echo responses.Echo, err error) {
	if chat, echo, err = responses.Translate([]byte(body), "m", stream); err != nil {
		return nil, nil, err
	}
	var check bodycheck.Check
	spec := bodycheck.Chat
	if err = check.Read(spec, chat); err == nil {
		_, _, err = check.Finish(spec, chat, func() bodycheck.Model { return bodycheck.Model{LlamaCpp: true} })
	}
	return chat, echo, err
}

func TestMessages(t *testing.T) {
	const (
		png  = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
		turn = `{"role":"user","content":"u"}`
	)
	for name, c := range map[string]struct{ body, want string }{
		"text":         {`{"input":"a \"b\" \u00e4"}`, `[{"role":"user","content":"a \"b\" ä"}]`},
		"instructions": {`{"instructions":"i\n","input":"a"}`, `[{"role":"system","content":"i\n"},{"role":"user","content":"a"}]`},
		"one system message": {
			`{"instructions":"i","input":[{"role":"developer","content":[{"type":"input_text","text":"d"},{"type":"input_text","text":"e"}]},
				{"type":"message","role":"system","content":"s"},` + turn + `,{"role":"developer","content":"later"}]}`,
			`[{"role":"system","content":"i\n\nd\n\ne\n\ns"},` + turn + `,{"role":"system","content":"later"}]`,
		},
		"only a system message": {`{"input":[{"role":"system","content":"s"}]}`, `[{"role":"system","content":"s"}]`},
		"parts": {
			`{"input":[{"role":"user","content":[{"type":"input_text","text":"t"},{"type":"input_image","detail":"low","image_url":"` + png + `"}]}]}`,
			`[{"role":"user","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"` + png + `","detail":"low"}}]}]`,
		},
		"assistant without a type": {
			`{"input":[` + turn + `,{"role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]}]},{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}]}`,
			`[` + turn + `,{"role":"assistant","content":"a"},{"role":"assistant","content":"no"}]`,
		},
		"a turn is one message": {
			`{"input":[` + turn + `,{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"},{"type":"reasoning_text","text":"ah"}]},
				{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"a"}]},
				{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{\"a\":1}"},{"type":"function_call","call_id":"c2","name":"g","arguments":{"b": [2]}},
				{"type":"function_call_output","call_id":"c1","output":"one"},{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]}]}`,
			`[` + turn + `,{"role":"assistant","reasoning_content":"hm\nah","content":"a","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
				{"id":"c2","type":"function","function":{"name":"g","arguments":"{\"b\": [2]}"}}]},{"role":"tool","tool_call_id":"c1","content":"one"},{"role":"tool","tool_call_id":"c2","content":"two"}]`,
		},
		"calls alone": {
			`{"input":[` + turn + `,{"type":"function_call","call_id":"c","name":"f","arguments":""}]}`,
			`[` + turn + `,{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":""}}]}]`,
		},
		"other tools": {
			`{"input":[` + turn + `,{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"q"}},
				{"type":"local_shell_call","call_id":"l","action":{"type":"exec","command":["ls"]}},{"type":"local_shell_call_output","id":"l","output":"a"},
				{"type":"custom_tool_call","call_id":"c","name":"patch","input":"a\nb"},{"type":"custom_tool_call_output","call_id":"c","output":"done"}]}`,
			`[` + turn + `,{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"patch","arguments":"{\"input\":\"a\\nb\"}"}}]},
				{"role":"tool","tool_call_id":"c","content":"done"}]`,
		},
		"thoughts that nobody can read": {`{"input":[{"type":"reasoning","summary":[],"encrypted_content":"x"},` + turn + `]}`, `[` + turn + `]`},
		"a summary":                     {`{"input":[{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}]}]}`, `[{"role":"assistant","reasoning_content":"s","content":""}]`},
		"nothing said":                  {`{"input":[{"role":"user","content":null},{"type":"function_call_output","call_id":"c"}]}`, `[{"role":"user","content":""},{"role":"tool","content":"","tool_call_id":"c"}]`},
		"no parts":                      {`{"input":[{"role":"user","content":[]}]}`, `[{"role":"user","content":""}]`},
	} {
		chat, _, err := translate(c.body, false)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		same(t, chat, `{"model":"m","stream":false,"messages":`+c.want+`}`)
	}
}

func TestMembers(t *testing.T) {
	const (
		head   = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"a"}]`
		schema = `{"type":"object","properties":{"a":{"type":"integer"}}}`
	)
	for body, want := range map[string]string{
		`"max_output_tokens":5,"temperature":0.5,"top_p":1,"seed":7,"metadata":{"a":"b"},"parallel_tool_calls":false`:                                                                                           `"max_tokens":5,"temperature":0.5,"top_p":1,"seed":7,"metadata":{"a":"b"},"parallel_tool_calls":false`,
		`"store":true,"include":["x"],"truncation":"auto","service_tier":"flex","prompt_cache_key":"k","user":"u","reasoning":{"effort":"low"},"zz":1,"n":9,"messages":[5],"response_format":5,"max_tokens":-7`: ``,
		`"text":{"format":{"type":"text"},"verbosity":"low"}`:                                                                 ``,
		`"text":{"format":{"type":"json_object"}}`:                                                                            `"response_format":{"type":"json_object"}`,
		`"text":{"format":{"type":"json_schema","name":"n","strict":true,"description":null,"schema":` + schema + `,"zz":1}}`: `"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":` + schema + `}}`,
		`"tools":[{"type":"function","name":"f","description":"d","parameters":` + schema + `,"strict":false,"zz":1},{"type":"custom","name":"c"},{"type":"function","name":"g","parameters":null}],"tool_choice":{"type":"function","name":"f"}`: `"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":` + schema + `,"strict":false}},{"type":"function","function":{"name":"g"}}],
			"tool_choice":{"type":"function","function":{"name":"f"}}`,
		`"tools":[{"type":"web_search_preview"},{"type":"local_shell"}],"tool_choice":"auto"`: ``,
		`"tools":[{"name":"f"}],"tool_choice":"required"`:                                     `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`,
		`"background":false,"previous_response_id":null,"conversation":null,"prompt":null`:    ``,
	} {
		chat, _, err := translate(`{"input":"a","stream":true,`+body+`}`, true)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if want != "" {
			want = "," + want
		}
		same(t, chat, head+want+`}`)
	}
}

// Responses repeat members of the request in one line, and have something in place of the others.
func TestEcho(t *testing.T) {
	_, echo, err := translate(`{"input":"a","temperature":0.5,"instructions":"`+strings.Repeat("i ", 40<<10)+`","metadata":{
		"a": "b"},"tools":[{"type":"function","name":"f"},{"type":"web_search"}],"text":{"format":{"type":"json_object"}},"max_output_tokens":5}`, false)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(echo)
	if err != nil || strings.Contains(string(text), "\n") {
		t.Fatalf("%s, %v", text, err)
	}
	same(t, text, `{"instructions":null,"max_output_tokens":5,"max_tool_calls":null,"metadata":{"a":"b"},"parallel_tool_calls":true,"prompt_cache_key":null,
		"reasoning":{"effort":null,"summary":null},"safety_identifier":null,"temperature":0.5,"text":{"format":{"type":"json_object"}},"tool_choice":"auto",
		"tools":[{"type":"function","name":"f"},{"type":"web_search"}],"top_p":null,"truncation":"disabled","user":null}`)
}

func TestRefused(t *testing.T) {
	deep := strings.Repeat("[", 900) + strings.Repeat("]", 900)
	for body, param := range map[string]string{
		`"conversation":{"id":"c"}`:                                   "conversation",
		`"prompt":{"id":"p"}`:                                         "prompt",
		`"background":true`:                                           "background",
		`"input":5`:                                                   "input",
		`"input":[5]`:                                                 "input",
		`"input":[[{"role":"user"}]]`:                                 "input",
		`"input":` + deep:                                             "input",
		`"input":[{}]`:                                                "input",
		`"input":[{"type":"item_reference"}]`:                         "input",
		`"input":[{"type":"item_reference","id":"x"}]`:                "input",
		`"input":[{"type":"computer_call"}]`:                          "input",
		`"input":[{"role":"root","content":"x"}]`:                     "input",
		`"input":[{"role":5,"content":"x"}]`:                          "input",
		`"input":[{"role":"user","content":{"type":"input_text"}}]`:   "input",
		`"input":[{"role":"user","content":[{"type":"input_text"}]}]`: "input",
		`"input":[{"role":"user","content":[{"type":"input_text","text":5}]}]`:                          "input",
		`"input":[{"role":"user","content":[{"type":"input_text","text":["a"]}]}]`:                      "input",
		`"input":[{"role":"user","content":["x"]}]`:                                                     "input",
		`"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]`:                     "input",
		`"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]`:                    "input",
		`"input":[{"role":"user","content":[{"type":"input_image","image_url":"http://a/b.png"}]}]`:     "input",
		`"input":[{"role":"user","content":[{"type":"input_image","image_url":{"url":"http://a"}}]}]`:   "input",
		`"input":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]`:     "input",
		`"input":[{"role":"user","content":[{"type":"input_audio","input_audio":{"url":"http://a"}}]}]`: "input",
		`"input":[{"role":"user","content":[{"type":"input_audio","input_audio":"http://a"}]}]`:         "input",
		`"input":[{"role":"system","content":[{"type":"input_image","image_url":"data:"}]}]`:            "input",
		`"input":[{"type":"function_call_output","output":"x"}]`:                                        "input",
		`"input":[{"type":"function_call_output","call_id":"c","output":5}]`:                            "input",
		`"input":[{"type":"reasoning","summary":[{"type":"summary_text"}]}]`:                            "input",
		`"input":[` + strings.Repeat(`{"role":"user","content":"x"},`, 4096) + `{}]`:                    "input",
		`"instructions":5`:                     "instructions",
		`"text":5`:                             "text",
		`"text":{"format":5}`:                  "text",
		`"text":{"format":{"type":"grammar"}}`: "text.format",
		`"text":{"format":{"type":"json_schema","schema":{"$ref":"http://a"}}}`: "text",
		`"text":{"format":{"type":"json_schema"}}`:                              "text.format.schema",
		`"tools":{}`:                                   "tools",
		`"tools":[5]`:                                  "tools",
		`"tools":[{"type":"function"}]`:                "tools",
		`"tools":[{"type":"mcp","server_url":""}]`:     "tools",
		`"tools":[{"type":"file_search"}]`:             "tools",
		`"tool_choice":"required"`:                     "tool_choice",
		`"tool_choice":"any"`:                          "tool_choice",
		`"tool_choice":{"type":"function","name":"f"}`: "tool_choice",
		`"tool_choice":{"type":"web_search_preview"}`:  "tool_choice",
		`"tool_choice":5`:                              "tool_choice",
	} {
		if !strings.Contains(body, `"input"`) {
			body = `"input":"a",` + body
		}
		_, _, err := translate(`{`+body+`}`, false)
		if err == nil {
			t.Errorf("%.200s was accepted", body)
			continue
		}
		if e := api.As(responses.NameRequestFields(err)); e.Status != 400 || e.Param != param || strings.Contains(e.Message, "'messages'") || strings.Contains(e.Message, "'response_format'") {
			t.Errorf("%.200s: %d %q %s", body, e.Status, e.Param, e.Message)
		}
	}
}

// FuzzTranslate: whatever a valid body holds, the chat is valid JSON of known members.
func FuzzTranslate(f *testing.F) {
	f.Add(`{"input":[{"role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"function_call","call_id":"c","name":"n","arguments":"{}"}]}`)
	f.Add(`{"input":"\\","instructions":"\u0041","tools":[{"type":"function","name":"f"}],"text":{"format":{"type":"json_object"}}}`)
	f.Fuzz(func(t *testing.T, body string) {
		var o map[string]any
		if json.Unmarshal([]byte(body), &o) != nil || !json.Valid([]byte(body)) {
			return
		}
		chat, echo, err := responses.Translate([]byte(body), "m", true)
		if err != nil {
			return
		}
		text, err := json.Marshal(echo)
		if err != nil || !json.Valid(chat) || strings.Contains(string(text), "\n") {
			t.Fatalf("%s gave %s and %s, %v", body, chat, text, err)
		}
	})
}
