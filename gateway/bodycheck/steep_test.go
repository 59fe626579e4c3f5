package bodycheck

import (
	"encoding/json"
	"strings"
	"testing"
)

// Templates write out what calls hold level by level: 9,900 levels in 40 KB took Gemma 4's 18 s.
func TestLevelsOfCalls(t *testing.T) {
	nested := func(levels int) string { return strings.Repeat(`{"a":[ `, levels/2) + strings.Repeat("]} ", levels/2) }
	text := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	call := func(arguments string) string {
		return `{"messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":` + arguments + `}}]}]}`
	}
	for _, tt := range []struct{ route, body, want string }{
		{"chat", call(text(nested(90))), ""},
		{"chat", call(text(nested(102))), "invalid_type"},
		{"chat", call(text(" \n" + nested(102))), "invalid_type"},
		{"chat", call(nested(90)), ""},
		{"chat", call(nested(102)), "invalid_type"},
		{"chat", call(text(`{"code":` + text(nested(102)[:350]) + `}`)), ""},
		{"chat", call(text(nested(102)[:400])), ""}, // no JSON
		{"chat", `{"messages":[{"role":"tool","content":` + text(nested(102)) + `}]}`, "invalid_type"},
		{"chat", `{"messages":[{"role":"tool","content":` + text("see "+nested(102)) + `}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"tool_use","input":` + nested(102) + `}]}]}`, "invalid_type"},
		{"messages", `{"messages":[{"content":[{"type":"tool_use","input":` + nested(90) + `}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"tool_result","content":` + text(nested(102)) + `}]}]}`, "invalid_type"},
		{"messages", `{"messages":[{"content":[{"type":"tool_result","content":[{"type":"text","text":` + text(nested(102)) + `}]}]}]}`, "invalid_type"},
	} {
		if _, _, err := check(tt.route, []byte(tt.body), llama); code(err) != tt.want {
			t.Errorf("%s, %.120s: %v, want %q", tt.route, tt.body, err, tt.want)
		}
	}
}
