package bodycheck

import "testing"

// Where a grammar leaves no token to go on with, the engine takes any, and ends if it is one that ends the answer.
func TestDeadEnds(t *testing.T) {
	const (
		refusal = "unsupported_parameter"
		a       = `"grammar":"root ::= \"a\""`
		tools   = `"tools":[{"type":"function","function":{"name":"f"}}]`
		format  = `"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"integer"}}}`
		chats   = `"messages":[]`
	)
	for body, want := range map[string]string{
		a + `,"logit_bias":[[1,-100],["a",5]]`: "", `"logit_bias":[[1,false]]`: "",
		a + `,"logit_bias":[[1,false]]`: refusal, a + `,"logit_bias":{"1":1,"2":false}`: refusal, tools + `,"logit_bias":[["a",false]]`: refusal, format + `,"logit_bias":[[1,0],["a",false]]`: refusal,
		a + `,"dry_multiplier":0.8`: refusal, tools + `,"dry_multiplier":0.8`: refusal, a + `,"dry_multiplier":0,"dry_base":2`: "", `"dry_multiplier":0.8`: "",
		a + `,"xtc_probability":0.1`: "", a + `,"xtc_threshold":0`: "", a + `,"xtc_probability":0,"xtc_threshold":-1`: "", a + `,"xtc_probability":0.1,"xtc_threshold":0.1`: "",
		a + `,"xtc_probability":1,"xtc_threshold":0`: refusal, tools + `,"xtc_probability":1,"xtc_threshold":-1`: refusal, format + `,"xtc_probability":1e-9,"xtc_threshold":1e-60`: refusal, `"xtc_probability":1,"xtc_threshold":0`: "",
		a + `,"ignore_eos":true`: refusal, tools + `,"ignore_eos":true`: refusal, a + `,"ignore_eos":false`: "", `"ignore_eos":true`: "",
		a + `,"dynatemp_range":0.5`: refusal, a + `,"dynatemp_range":0.5,"temperature":0.5`: refusal, a + `,"dynatemp_range":0.5,"temperature":0.8`: "", a + `,"dynatemp_range":0.9999999998,"temperature":1`: refusal, `"dynatemp_range":0.5`: "", a + `,"dynatemp_range":0`: "",
		a + `,"reasoning_budget_tokens":0`: refusal, a + `,"reasoning_budget_tokens":-1`: "", format + `,"thinking_budget_tokens":5`: refusal,
		tools + `,"reasoning_budget_tokens":5`: "", tools + `,"tool_choice":"required","reasoning_budget_tokens":5`: refusal, tools + `,"tool_choice":"auto","reasoning_budget_tokens":5`: "",
		format + `,"chat_template_kwargs":{"controls":{"length":"<|im_end|>"}}`: refusal, tools + `,"tool_choice":"required","chat_template_kwargs":{"a":["\u003c/s>"]}`: refusal,
		format + `,"chat_template_kwargs":{"controls":{"length":"short"}}`: "", tools + `,"chat_template_kwargs":{"a":"<b>"}`: "", `"chat_template_kwargs":{"a":"<|im_end|>"}`: "",
		tools + `,` + format + `,"reasoning_budget_tokens":5`: refusal, `"response_format":{"type":"text"},"reasoning_budget_tokens":5`: "", `"reasoning_budget_tokens":5`: "",
	} {
		if _, _, err := check("chat", []byte(`{`+chats+`,`+body+`}`), llama); code(err) != want {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
		if _, _, err := check("chat", []byte(`{`+chats+`,`+body+`}`), Model{}); err != nil {
			t.Errorf("%s, of another engine: %v", body, err)
		}
	}
	for body, want := range map[string]string{
		`"tool_choice":{"type":"auto"},"thinking":{"type":"enabled","budget_tokens":5}`: "", `"tool_choice":{"type":"any"}`: "",
		`"tool_choice":{"type":"any"},"thinking":{"type":"enabled","budget_tokens":5}`: refusal, `"tool_choice":{"type":"tool","name":"f"},"thinking":{"type":"enabled"}`: refusal,
		`"tool_choice":{"type":"any"},"thinking":{"type":"disabled"}`: "",
	} {
		body = `{"messages":[],"tools":[{"name":"f","input_schema":{}}],` + body + `}`
		if _, _, err := check("messages", []byte(body), llama); code(err) != want {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// What an assistant said last is read by the grammar that is to go on with it. A token that ends answers ends the engine there.
func TestTextsToGoOnWith(t *testing.T) {
	const (
		refusal = "unsupported_parameter"
		format  = `,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"integer"}}}`
		tools   = `,"tools":[{"type":"function","function":{"name":"f"}}]`
		user    = `{"role":"user","content":"<eos> [EOS]"},`
	)
	assistant := func(content string) string { return user + `{"role":"assistant","content":` + content + `}` }
	for _, tt := range []struct{ messages, rest, want string }{
		{assistant(`"<eos>"`), "", ""},
		{assistant(`"<eos>"`), format, refusal},
		{assistant(`"{\"a\":\"<|im_end|>"`), format, refusal},
		{assistant(`"\u003ceos>"`), format, refusal},
		{assistant(`"[EOS]"`), format, refusal},
		{assistant(`[{"type":"text","text":"</s>"}]`), format, refusal},
		{user + `{"role":"assistant","content":"","reasoning_content":"</s>"}`, format, refusal},
		{assistant(`"<eos>"`), `,"json_schema":{"type":"integer"}`, refusal},
		{assistant(`"<eos>"`), tools + `,"tool_choice":"required"`, refusal},
		{assistant(`"<eos>"`), tools, ""},
		{assistant(`"<eos>"`), `,"grammar":"root ::= \"a\""`, ""}, // which does not read it
		{assistant(`"[{\"a\":1"`), format, ""},
		{assistant(`[{"type":"text","text":"{\"a\":["}]`), format, ""},
		{assistant(`"<eos>"`) + "," + user[:len(user)-1], format, ""},
		{user[:len(user)-1], format, ""},
		{user[:len(user)-1], format + `,"continue_final_message":true`, refusal},
		{user[:len(user)-1], format + `,"continue_final_message":"content"`, refusal},
		{user[:len(user)-1], format + `,"continue_final_message":false`, ""},
	} {
		body := `{"messages":[` + tt.messages + `]` + tt.rest + `}`
		if _, _, err := check("chat", []byte(body), llama); code(err) != tt.want {
			t.Errorf("%s: %v, want %q", body, err, tt.want)
		}
		if _, _, err := check("chat", []byte(body), Model{}); err != nil {
			t.Errorf("%s, of another engine: %v", body, err)
		}
	}
}
