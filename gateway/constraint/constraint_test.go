package constraint

import (
	"fmt"
	"strings"
	"testing"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// forms are how a schema stands in the members of a body.
var forms = map[string]string{
	"json_schema":     `%s`,
	"response_format": `{"type":"json_schema","json_schema":{"name":"x","schema":%s}}`,
	"tools":           `[{"name":"f","input_schema":%s}]`,
}

// check checks a schema in a member.
func check(param, schema string, llama bool) error {
	text := fmt.Appendf(nil, forms[param], schema)
	v := jsonscan.Value{Kind: jsonscan.Object, Raw: text}
	if text[0] == '[' {
		v.Kind = jsonscan.Array
	}
	return Schemas{Param: param, Llama: llama, Lenient: param == "tools"}.Check(v)
}

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
		if err := check("json_schema", s, true); (err == nil) != (want == "") || err != nil && api.As(err).Code != want {
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

// The largest whole number of JavaScript, which zod and Claude Code put into schemas, becomes the largest that engines take.
func TestLargeBounds(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991}`: `{"type":"integer","minimum":-999999999999999 ,"maximum":999999999999999 }`,
		`{"type":"integer","exclusiveMinimum":0,"maximum":9007199254740991}`:        `{"type":"integer","exclusiveMinimum":0,"maximum":999999999999999 }`,
		`{"type":"number","maximum":1000000000000000000000.5}`:                      `{"type":"number","maximum":999999999999999         }`,
		`{"type":"integer","minimum":9007199254740991}`:                             "",
		`{"type":"integer","maximum":-9007199254740991}`:                            "",
		`{"type":"integer","maximum":1e300}`:                                        "",
		`{"type":"integer","maximum":999999999999999}`:                              `{"type":"integer","maximum":999999999999999}`,
	} {
		for _, param := range []string{"tools", "json_schema"} {
			text := fmt.Appendf(nil, forms[param], schema)
			v := jsonscan.Value{Kind: jsonscan.Object, Raw: text}
			if text[0] == '[' {
				v.Kind = jsonscan.Array
			}
			err := Schemas{Param: param, Llama: true, Lenient: param == "tools"}.Check(v)
			if (err == nil) != (want != "") || err == nil && !strings.Contains(string(text), want) {
				t.Errorf("%s: %v, %s", schema, err, text)
			}
		}
	}
}

// A tool's text may be longer than engines count: they pass over that length.
func TestLongTextsOfTools(t *testing.T) {
	const schema = `{"type":"object","properties":{"a":{"type":"string","maxLength":524288},"b":{"type":"string","maxLength": 200}}}`
	text := fmt.Appendf(nil, forms["tools"], schema)
	err := Schemas{Param: "tools", Llama: true, Lenient: true}.Check(jsonscan.Value{Kind: jsonscan.Array, Raw: text})
	if want := strings.Replace(schema, `"maxLength":5`, `"x-maxText":5`, 1); err != nil || !strings.Contains(string(text), want) {
		t.Errorf("%v, %s", err, text)
	}
	if check("json_schema", schema, true) == nil {
		t.Error("a constraint that engines do not take is accepted")
	}
}
