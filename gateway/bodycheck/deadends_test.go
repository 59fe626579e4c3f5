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
		a + `,"dynatemp_range":0.5`: refusal, a + `,"dynatemp_range":0.5,"temperature":0.5`: refusal, a + `,"dynatemp_range":0.5,"temperature":0.8`: "", `"dynatemp_range":0.5`: "", a + `,"dynatemp_range":0`: "",
		a + `,"reasoning_budget_tokens":0`: refusal, a + `,"reasoning_budget_tokens":-1`: "", format + `,"thinking_budget_tokens":5`: refusal,
		tools + `,"reasoning_budget_tokens":5`: "", tools + `,"tool_choice":"required","reasoning_budget_tokens":5`: refusal, tools + `,"tool_choice":"auto","reasoning_budget_tokens":5`: "",
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
