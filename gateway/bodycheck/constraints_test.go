package bodycheck

import (
	"fmt"
	"strings"
	"testing"
)

func TestPatterns(t *testing.T) {
	for p, ok := range map[string]bool{
		"^[a-z]+$": true, "^(a|b){1,40}$": true, "^[^a]*x?$": true, `^a\.b$`: true, "^$": true, "^(?:ab)+$": true, `^[\]]$`: true, "^([a-z]+,)+[a-z]+$": true,
		"^+[a-z]$": false, "^{2}times$": false, "^{,5}a$": false, "^a{,5}$": false, "^]$": false, "^}$": false, "^a{2,1}$": false, "^(+a)$": false,
		"^(a?){1000}$": false, "^((a{0,100}){0,100}){0,100}$": false, "^([ab]{1,40}){1,40}$": false, "^(a*)*$": false, "^[]$": false, "^[]a]$": false,
		"^[[:alpha:]]$": false, "^a**$": false, "^(?=a)b$": false, `^\d+$`: false, `^\`: false, `^a\$`: false, "a": false, "": false, "^[a$": false,
		"^" + strings.Repeat("(", 400) + "a" + strings.Repeat(")", 400) + "$": false,
		"^" + strings.Repeat("a", 2000) + "$":                                 false,
	} {
		if _, err := checkPattern(p, false); (err == nil) != ok {
			t.Errorf("%.60s: %v", p, err)
		}
	}
	for p, ok := range map[string]bool{ // of tools
		`^\d{3}-\w+$`: true, "abc+": true, "^(?=.*[a-z])[a-z]+$": true, `^\u00e9+$`: true,
		"^(?=a)+$": false, "^+a$": false, "^]$": false, "^(a?){1000}$": false, "+": true,
	} {
		if _, err := checkPattern(p, true); (err == nil) != ok {
			t.Errorf("lenient, %.60s: %v", p, err)
		}
	}
}

func TestGrammars(t *testing.T) {
	chain := func(n int) string {
		s := "root ::= r0\n"
		for i := range n {
			s += fmt.Sprintf("r%d ::= r%d\n", i, i+1)
		}
		return s
	}
	for g, ok := range map[string]bool{
		`root ::= "a" | "b" x*` + "\n" + `x ::= [a-z]{1,5} # words` + "\n":            true,
		`root ::= ` + strings.Repeat(`"a"{0,512} `, 400):                              false,
		`root ::= ` + strings.Repeat(`[^x]* `, 3000):                                  false,
		`root ::= ` + strings.Repeat(`[^x]* `, 128):                                   false,
		`root ::= root "a" | "b"`:                                                     false,
		`root ::= ("a" | ("b" "c")+)? ws` + "\nws ::= [ \\t\\n]*":                     true,
		`root ::= ` + strings.Repeat("(", 30000) + `"a"` + strings.Repeat(")", 30000): false,
		`root ::= ` + strings.Repeat("(", 65) + `"a"` + strings.Repeat(")", 65):       false,
		`root ::= "a"{2,1}`:                               false,
		`root ::= "a"{0,99999}`:                           false,
		`root ::= ("a"{0,40}){0,40}`:                      false,
		"root ::= a{0,40}\na ::= \"x\"{0,40}":             false,
		"root ::= a{0,10}\na ::= \"x\"{1,40} \"y\"":       true,
		"root ::= [" + strings.Repeat("a", 600) + "]":     false,
		"root ::= " + strings.Repeat(`"a"|`, 300) + `"b"`: false,
		chain(900):      true,
		chain(1100):     false,
		`root ::= "a`:   false,
		`root ::= *`:    false,
		`root ::= ("a"`: false,
		`root ::= "a")`: false,
		`root ::= "\""`: true,
		`root ::= [\]]`: true,
	} {
		if err := checkGrammar(g); (err == nil) != ok {
			t.Errorf("%.60s: %v", g, err)
		}
	}
}

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

func TestAnyObject(t *testing.T) {
	for format, want := range map[string]bool{
		`{"type":"json_object"}`: true, `{"type":"json\u005fobject"}`: true, `{"schema":{"type":"object"},"type":"json_object"}`: false,
		`{"type":"text"}`: false, `{"type":"json_object","type":"text"}`: false, `{"type":"json_schema","json_schema":{"schema":{}}}`: false, `null`: false,
	} {
		body := []byte(`{"messages":[{}],"response_format":` + format + `}`)
		if c, _, err := check("chat", body, llama); err != nil || c.AnyObject != want {
			t.Errorf("%s: %v, %v", format, c.AnyObject, err)
		}
		if c, _, err := check("chat", body, Model{}); err != nil || c.AnyObject {
			t.Errorf("%s, another engine: %v, %v", format, c.AnyObject, err)
		}
	}
}

// Checkers of patterns and grammars end, whatever they read.
func FuzzConstraints(f *testing.F) {
	f.Add("^(a|b){1,4}[^x]*$")
	f.Add("root ::= (\"a\" | [b-c]{1,2})* x\nx ::= <think>")
	f.Add("root ::= s \"!\"\ns ::= [a-z\\u00e9] s? s? | [^\\x00-\\n]{2,} .")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		_, _ = checkPattern(text, false)
		_, _ = checkPattern(text, true)
		_ = checkGrammar(text)
	})
}

// A class or a number that no text can hold.
func TestNothingToGoOnWith(t *testing.T) {
	const invalid = "invalid_type"
	for g, ok := range map[string]bool{
		`root ::= "\x00"`: false, `root ::= "a\x00"`: false, `root ::= "\u0000"`: false, `root ::= [\x00]`: false, `root ::= [b-a]`: false, `root ::= [^\x00-\U0010FFFF]`: false,
		`root ::= [^\x01-\U0010FFFF]`: false, `root ::= "\U00110000"`: false, `root ::= [\U00110000-\U00120000]`: false, `root ::= <[1]> "a"`: false, `root ::= <eos>`: false,
		`root ::= [\x00-\x01]`: true, `root ::= [^\x00]`: true, `root ::= [b-aa]`: false, `root ::= [a\u00BF-\x80] "b"`: false, `root ::= [\x01\u0FFF-\u0800]`: false, `root ::= [^\x00-\U0003FFFF\U00080000-\U003FFFFF\U0007FFFF-\U00040000]`: false,
		`root ::= !<[1]> "a"`: false, "root ::= !<eos>*": false, `root ::= !<a> <b>`: false, `root ::= <think> .* </think>`: true, `root ::= <think|>`: false, `root ::= "" | "a"`: true, "root ::= []": true,
		// What a negated class leaves has to hold all characters that begin with some byte.
		`root ::= [^\x00-\U000F0000\U000F0002-\U007FFFFF]`: false, `root ::= "a" [^\x00-\uD7FF\uE000-\U003FFFFF]`: false, `root ::= [^\x00-\U000F0000]`: false,
		`root ::= [^\x00-\x7F]`: true, `root ::= [^\x00-` + "b" + `d-\U003FFFFF]`: true, `root ::= [^\x00-\u007F\u00C0-\U003FFFFF]`: true, `root ::= [^\x00-\u0080\u00C0-\U003FFFFF]`: false,
		`root ::= [^\x00-\u4FFF\u6000-\U003FFFFF]`: true, `root ::= [^\x00-\u5000\u6000-\U003FFFFF]`: false, `root ::= [^\x00-\U000BFFFF\U00100000-\U003FFFFF]`: true,
	} {
		if err := checkGrammar(g); (err == nil) != ok {
			t.Errorf("%s: %v", g, err)
		}
	}
	for s, want := range map[string]string{
		`{"type":"integer","minimum":4,"exclusiveMaximum":4}`: invalid, `{"type":"integer","exclusiveMinimum":4,"exclusiveMaximum":4}`: invalid, `{"type":"integer","exclusiveMinimum":4,"maximum":4}`: invalid,
		`{"type":"integer","exclusiveMinimum":4,"exclusiveMaximum":5}`: invalid, `{"type":["null","integer"],"exclusiveMinimum":-1,"exclusiveMaximum":0}`: invalid,
		`{"items":{"type":"integer","minimum":-3.5,"exclusiveMaximum":-3}}`: invalid,
		`{"type":"integer","exclusiveMinimum":4,"exclusiveMaximum":6}`:      "", `{"type":"integer","minimum":4,"maximum":4}`: "", `{"type":"integer","minimum":4,"exclusiveMinimum":9,"maximum":9}`: "",
		`{"type":"integer","exclusiveMinimum":0}`: "", `{"type":"integer","exclusiveMaximum":0}`: "", `{"type":"number","minimum":4,"exclusiveMaximum":5}`: "", `{"type":"number","minimum":0.1,"exclusiveMaximum":0.9}`: "",
		`{"pattern":"^[^\u0001-􏿿]$"}`: invalid, `{"pattern":"^\u0000$"}`: invalid, `{"pattern":"^(a|[^\u0001-􏿿])b$"}`: invalid, `{"pattern":"^[^\u0001]$"}`: "",
		`{"pattern":"^[a\\u0FFF-\\u0800]b$"}`: invalid,
	} {
		if _, _, err := check("completions", []byte(`{"prompt":"a","json_schema":`+s+`}`), llama); code(err) != want {
			t.Errorf("%s: %v, want %q", s, err, want)
		}
	}
	for p, ok := range map[string]bool{ // of tools
		`^\x00$`: false, `^a\u0000$`: false, `^[\x00]$`: false, `^\x41\u00e9$`: true, `^[^\x00-\x1f]$`: true, `^\t\x$`: false,
	} {
		if _, err := checkPattern(p, true); (err == nil) != ok {
			t.Errorf("%s: %v", p, err)
		}
	}
}
