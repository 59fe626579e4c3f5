package bodycheck

import (
	"fmt"
	"strings"
	"testing"
)

func TestSchemas(t *testing.T) {
	names := func(n int) string {
		s := ""
		for i := range n {
			s += fmt.Sprintf(`,"p%d":{}`, i)
		}
		return `{"properties":{` + strings.TrimPrefix(s, ",") + `}}`
	}
	for s, ok := range map[string]bool{
		`{"type":"object","properties":{"pattern":{"type":"string"},"minimum":{"type":"number"},"$ref":{"type":"string"}}}`: true,
		`{"$ref":"#/$defs/n","$defs":{"n":{"properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}}}}}`:       true,
		`{"enum":["^+",{"pattern":"^+a$"}],"default":{"pattern":"^+a$"}}`:                                                   true,
		`{"type":"integer","minimum":9223372036854775807}`:                                                                  false,
		`{"type":"integer","exclusiveMaximum":-9007199254740992}`:                                                           false,
		`{"type":"integer","exclusiveMinimum":500,"exclusiveMaximum":-5}`:                                                   false,
		`{"type":"integer","minimum":-999999999999999,"exclusiveMaximum":5}`:                                                true,
		`{"anyOf":[` + strings.Repeat(`{"pattern":"^[a-z]*[0-9]*$"},`, 64) + `{}]}`:                                         true,
		`{"anyOf":[` + strings.Repeat(`{"pattern":"^[a-z]*[0-9]*$"},`, 65) + `{}]}`:                                         false,
		`{"$ref":"#"}`:                               false,
		`{"$ref":"http://127.0.0.1/x"}`:              false,
		`{"\u0024ref":"http://127.0.0.1/x"}`:         false,
		`{"anyOf":[{"$ref":"#"},{"type":"string"}]}`: false,
		`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`:  false,
		`{"properties":{"a":{"items":{"pattern":"^+[a-z]$"}}}}`:                             false,
		`{"p\u0061ttern":"^+[a-z]$"}`:                                                       false,
		`{"pattern":"^a$","pattern":"^+[a-z]$"}`:                                            false,
		`{"minItems":9,"maxItems":2}`:                                                       false,
		`{"minLength":9,"maxLength":2}`:                                                     false,
		`{"maxLength":1e99}`:                                                                false,
		`{"minItems":-1}`:                                                                   false,
		`{"properties":{"` + strings.Repeat("p", 30000) + `":{}},"additionalProperties":1}`: false,
		`{"enum":[` + strings.Repeat("1,", 600) + `1]}`:                                     false,
		names(150): true,
		names(300): false,
		`{"type":["string","null"],"format":"date","enum":["a",null],"additionalProperties":false}`:             true,
		`{"type":"object","properties":{"minLength":{"type":"integer"},"items":{"type":"array","items":true}}}`: true,
		strings.Repeat(`{"items":`, 200) + "{}" + strings.Repeat("}", 200):                                      false,
	} {
		for route, format := range map[string]string{
			"chat":        `{"messages":[{}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":%s}}}`,
			"completions": `{"prompt":"x","json_schema":%s}`,
			"messages":    `{"messages":[{}],"tools":[{"name":"f","input_schema":%s}]}`,
		} {
			c, _, err := check(route, fmt.Appendf(nil, format, s), llama)
			if (err == nil) != ok || err == nil && !c.Constrained {
				t.Errorf("%s %.100s: %v", route, s, err)
			}
		}
	}
	for _, s := range []string{ // of the wrong type; engines pass over it in tools
		`{"type":"integer","exclusiveMinimum":"a"}`, `{"type":5}`, `{"anyOf":{}}`, `{"type":"object","properties":{"a":5}}`,
		`{"type":"object","properties":{"a":{"type":"string","minLength":true}}}`,
	} {
		if _, _, err := check("completions", []byte(`{"json_schema":`+s+`}`), llama); code(err) != "invalid_type" {
			t.Errorf("%s: %v", s, err)
		}
		if _, _, err := check("messages", []byte(`{"tools":[{"input_schema":`+s+`}]}`), llama); err != nil {
			t.Errorf("%s in tools: %v", s, err)
		}
	}
	for body, constrained := range map[string]bool{
		`{"messages":[{}],"response_format":{"type":"text"}}`: false, `{"messages":[{}],"response_format":{"type":"json_object"}}`: true,
		`{"messages":[{}],"grammar":""}`: false, `{"messages":[{}],"tools":[]}`: false, `{"messages":[{}]}`: false,
	} {
		if c, _, err := check("chat", []byte(body), llama); err != nil || c.Constrained != constrained {
			t.Errorf("%s: constrained %v, %v", body, c.Constrained, err)
		}
	}
}

// llama-server passes over the format of a message, so an answer by a schema is refused rather than given without one.
func TestMessageFormat(t *testing.T) {
	const format = `{"type":"json_schema","schema":{"type":"object"}}`
	for config, want := range map[string]string{
		`{"format":` + format + `}`: "unsupported_parameter", `{"effort":"low","format":` + format + `}`: "unsupported_parameter",
		`{"effort":"low"}`: "", `{"format":{"type":"text"}}`: "", `null`: "",
	} {
		body := []byte(`{"messages":[{}],"output_config":` + config + `}`)
		if _, _, err := check("messages", body, llama); code(err) != want {
			t.Errorf("%s: %v", config, err)
		}
		if c, _, err := check("messages", body, Model{}); err != nil || c.Constrained != (want != "") {
			t.Errorf("%s, another engine: constrained %v, %v", config, c.Constrained, err)
		}
	}
}

func TestFormatOfLlama(t *testing.T) {
	const object = `{"type":"json_object","schema":{"type":"object"}}`
	for format, want := range map[string]string{
		`{"type":"json_object"}`: object, `{"type":"json\u005fobject"}`: object, `{"schema":{"type":"object"},"type":"json_object"}`: "",
		`{"type":"json_object","value":{"type":"array"}}`: `{"type":"json_object","schema":{"type":"array"}}`, `{"type":"json_object","value":1}`: object,
		`{"value":{"type":"array"},"schema":{"type":"object"},"type":"json_object"}`: "",
		`{"type":"text"}`: "", `{"type":"json_object","type":"text"}`: "", `{"type":"json_schema","json_schema":{"schema":{}}}`: "", `null`: "",
	} {
		body := []byte(`{"messages":[{}],"response_format":` + format + `}`)
		if c, _, err := check("chat", body, llama); err != nil || string(c.Format) != want {
			t.Errorf("%s: %s, %v", format, c.Format, err)
		}
		if c, _, err := check("chat", body, Model{}); err != nil || c.Format != nil {
			t.Errorf("%s, another engine: %s, %v", format, c.Format, err)
		}
	}
	steep := `{"messages":[{}],"response_format":{"type":"json_object","value":{"type":"string","pattern":"((a{1,99}){1,99}){1,99}"}}}`
	if _, _, err := check("chat", []byte(steep), llama); err == nil {
		t.Error("a schema by another name is not checked")
	}
}
