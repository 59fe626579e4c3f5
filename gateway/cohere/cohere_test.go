package cohere

import (
	"encoding/json"
	"strings"
	"testing"

	"reveille/gateway/api"
)

func TestTranslate(t *testing.T) {
	const before, after = `{"model":"m","stream":false,"messages":[`, `]`
	for ask, want := range map[string]string{
		`"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}],"p":0.5,"k":7,"max_tokens":9,"temperature":0.1,"seed":1,"stop_sequences":["x"],"frequency_penalty":0.2,"presence_penalty":null,"safety_mode":"NONE","zz":1`: before + `{"role":"system","content":"s"},{"role":"user","content":"u"}` + after +
			`,"top_p":0.5,"top_k":7,"max_tokens":9,"temperature":0.1,"seed":1,"stop":["x"],"frequency_penalty":0.2`,
		`"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x"}}]}]`: before + `{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x"}}]}` + after,
		`"messages":[{"role":"assistant","tool_plan":"plan","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":[{"type":"document","document":{"data":"<7>"}}]}]`: before +
			`{"role":"assistant","content":"","reasoning_content":"plan","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"{\"data\":\"<7>\"}","tool_call_id":"1"}` + after,
		`"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"a"}]}],"tools":[{"a":1}],"tool_choice":"REQUIRED"`: before +
			`{"role":"assistant","content":"a","reasoning_content":"hm"}` + after + `,"tools":[{"a":1}],"tool_choice":"required"`,
		`"messages":[],"response_format":{"type":"json_object"}`: before + after + `,"response_format":{"type":"json_object"}`,
		`"messages":[],"response_format":{"type":"json_object","json_schema":{"type":"object"}}`: before + after +
			`,"response_format":{"json_schema":{"name":"answer","schema":{"type":"object"},"strict":true},"type":"json_schema"}`,
		`"messages":[],"response_format":{"type":"text"},"tool_choice":null`: before + after,
		`"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a\n"},{"type":"thinking","thinking":"b"}],"tool_plan":"p ","tool_call_id":null}],"Tools":[1],"tool_choice":""`: before +
			`{"role":"assistant","content":"","reasoning_content":"p a\nb"}` + after,
		`"messages":[{"role":"user","content":[{"type":"text","text":"\u0061"},{"type":"text"}]},{"role":"tool","content":null}]`: before +
			`{"role":"user","content":[{"type":"text","text":"\u0061"},{"type":"text","text":""}]},{"role":"tool","content":""}` + after,
	} {
		if got, err := Translate([]byte("{"+ask+"}"), "m", false); err != nil || string(got) != want+"}" {
			t.Errorf("%s:\n%s %v, want\n%s}", ask, got, err, want)
		}
	}
	if got, err := Translate([]byte(`{"messages":[]}`), "m", true); err != nil || !strings.Contains(string(got), `"stream":true,"stream_options":{"include_usage":true}`) {
		t.Errorf("%s %v", got, err)
	}
	for ask, param := range map[string]string{
		`"messages":[{"role":"bot","content":"a"}]`:                "messages",
		`"messages":[{"role":"user","content":5}]`:                 "messages",
		`"messages":[{"role":"user","content":[{"type":"file"}]}]`: "messages",
		`"messages":[5]`:                                                    "messages",
		`"messages":[],"tool_choice":"AUTO"`:                                "tool_choice",
		`"messages":[],"logprobs":true`:                                     "logprobs",
		`"messages":[],"response_format":{"type":"xml"}`:                    "response_format",
		`"messages":[],"response_format":[]`:                                "response_format",
		`"messages":[{"role":"user","tool_plan":5}]`:                        "messages",
		`"messages":[{"role":"user","content":[{"type":"text","text":5}]}]`: "messages",
		`"messages":[],"tool_choice":5`:                                     "tool_choice",
	} {
		if _, err := Translate([]byte("{"+ask+"}"), "m", false); err == nil || api.As(err).Param != param || api.As(err).Status != 400 {
			t.Errorf("%s: %+v", ask, err)
		}
	}
}

// A stream that breaks off ends with an error, whatever came before.
func TestBrokenStreams(t *testing.T) {
	for _, c := range []struct{ events, kinds, reason string }{
		{`data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n" + `data: {"error":{"message":"gone"}}` + "\n\n", "message-start content-start content-delta content-end message-end", "gone"},
		{`data: {"error":{"message":"gone"}}` + "\n\n", "message-start message-end", "gone"},
		{"", "message-start message-end", "could not be understood"},
		{": wait\n\n", "message-start message-end", "could not be understood"},
		{`data: {"choices":[` + "\n\n", "message-start message-end", "could not be understood"},
	} {
		s := NewStream("x")
		out := string(s.End(s.Append(nil, []byte(c.events))))
		var kinds []string
		var last struct {
			Type  string
			Delta struct {
				Reason string `json:"finish_reason"`
				Error  string
			}
		}
		for line := range strings.Lines(out) {
			if data, is := strings.CutPrefix(line, "data: "); is {
				if err := json.Unmarshal([]byte(data), &last); err != nil {
					t.Errorf("%s: %v", data, err)
				}
				kinds = append(kinds, last.Type)
			}
		}
		if strings.Join(kinds, " ") != c.kinds || last.Delta.Reason != "ERROR" || !strings.Contains(last.Delta.Error, c.reason) {
			t.Errorf("%q: %s", c.events, out)
		}
	}
}
