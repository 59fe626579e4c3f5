package bodycheck

import (
	"strings"
	"testing"

	"reveille/gateway/media"
)

// TestOllama: long lists are refused in the body as it comes, whatever their names' case, and however often they are named.
func TestOllama(t *testing.T) {
	list := func(item string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
	}
	calls := func(n int) string { return `{"role":"assistant","tool_calls":` + list(`{}`, n) + `}` }
	options := func(n int) string {
		var all strings.Builder
		for i := range n {
			all.WriteString(`"` + strings.Repeat("x", i+1) + `":1,`)
		}
		return `{"options":{` + strings.TrimSuffix(all.String(), ",") + `}}`
	}
	for name, tt := range map[string]struct {
		body string
		ok   bool
	}{
		"as many as may be":      {`{"model":"m","messages":[` + calls(maxCalls) + `,{"images":` + list(`"x"`, media.MaxPictures) + `}],"stream":false}`, true},
		"messages":               {`{"messages":` + list(`{}`, maxMessages+1) + `}`, false},
		"messages, named twice":  {`{"messages":` + list(`{}`, maxMessages) + `,"Messages":[{}]}`, false},
		"calls":                  {`{"messages":[` + calls(maxCalls+1) + `]}`, false},
		"calls, of two messages": {`{"messages":[` + calls(maxCalls) + `,` + calls(1) + `]}`, false},
		"calls, in another case": {`{"MESSAGES":[{"Tool_Callſ":` + list(`{}`, maxCalls+1) + `}]}`, false},
		"calls, escaped":         {`{"messages":[{"tool\u005fcalls":` + list(`{}`, maxCalls+1) + `}]}`, false},
		"pictures":               {`{"images":` + list(`""`, media.MaxPictures+1) + `}`, false},
		"pictures of a message":  {`{"images":["x"],"messages":[{"images":` + list(`""`, media.MaxPictures) + `}]}`, false},
		"options":                {options(maxOptions), true},
		"too many options":       {options(maxOptions + 1), false},
		"options, named twice":   {strings.TrimSuffix(options(maxOptions), "}") + `,"Options":{"a":1}}`, false},
		"no object":              {`{"messages":[1]}`, false},
		"no list":                {`{"messages":1,"images":2,"options":3}`, true},
		"no JSON":                {`{`, true},
	} {
		if err := Ollama([]byte(tt.body)); (err == nil) != tt.ok || err != nil && code(err) != "invalid_type" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
