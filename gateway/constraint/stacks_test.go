package constraint

import (
	"fmt"
	"strings"
	"testing"
)

// jsonGrammar is any JSON value.
const jsonGrammar = `root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}`

// programGrammar is a small language: statements, expressions, comments.
const programGrammar = `root ::= function*
function ::= type name "(" (type name)? ")" "{" statement* "}"
type ::= ("int" | "float" | "char") ws
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::= type name ws "=" ws expression ";" | name ws "=" ws expression ";" | name ws "(" list? ")" ";" |
  "return" ws expression ";" | "while" "(" condition ")" "{" statement* "}" | "//" [^\n]* "\n" |
  "if" "(" condition ")" "{" statement* "}" ("else" "{" statement* "}")? | "/*" ([^*] | "*" [^/])* "*/"
condition ::= expression ("<=" | "<" | "==" | "!=" | ">=" | ">") expression
expression ::= term (("+" | "-") term)*
term ::= factor (("*" | "/") factor)*
factor ::= name | [0-9]+ | "-" factor | name "(" list? ")" | "(" ws expression ws ")"
list ::= expression ("," ws expression)*
ws ::= [ \t\n]+`

func TestAmbiguousGrammars(t *testing.T) {
	doubling := "root ::= r0\n"
	for i := range 30 {
		doubling += fmt.Sprintf("r%d ::= r%d r%d | r%d \"x\"\n", i, i+1, i+1, i+1)
	}
	same := "root ::= a0\n"
	for i := range 40 {
		same += fmt.Sprintf("a%d ::= a%d | a%d\n", i, i+1, i+1)
	}
	busy := ""
	for i := range 200 {
		busy += fmt.Sprintf("r%d ::= \"(\" r%d \")\" | \"[\" r%d \"]\" | \"{\" r%d \"}\" | \"a\"\n", i, i, i, i)
	}
	for g, ok := range map[string]bool{
		jsonGrammar:    true,
		programGrammar: true,
		"root ::= (sum \"=\" ws term \"\\n\")+\nsum ::= term ([-+*/] term)*\nterm ::= name | [0-9]+ ws | \"(\" ws sum \")\" ws\nname ::= [a-z] [a-z0-9_]* ws\nws ::= [ \\t\\n]*": true,
		`root ::= ("(" root ")")*`:                true,
		`root ::= ("- " [^\r\n]+ "\n")+`:          true,
		`root ::= [a-z]+ (" " [a-z]+)*`:           true,
		`root ::= [a-zA-Z]+ ([ \t\n] [あ-ん一-鿿]+)*`: true,
		"root ::= (\"1. \" move \" \" move \"\\n\")+\nmove ::= ([NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8] | ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBQR])? | \"O-O\" \"-O\"?) [+#]?": true,
		"root ::= \"<\" name (\" \" name \"=\\\"\" [^\"<]* \"\\\"\")* (\"/>\" | \">\" (root | [^<])* \"</\" name \">\")\nname ::= [a-z]+":                                       true,
		`root ::= <think> [^<]* </think> .*`:                                                                         true,
		`root ::= ` + strings.Repeat(`[a-z]* `, 5):                                                                   true,
		`root ::= ` + strings.Repeat(`[a-z]* `, 16):                                                                  false,
		`root ::= ` + strings.Repeat(`[a-z]{0,512} `, 8):                                                             false,
		"root ::= x* \"!\"\nx ::= [a-z] | [a-z]":                                                                     true, // 2 ways for each letter: 80 ms for a token
		"root ::= x* \"!\"\nx ::= [a-z] | [a-z] | [a-z]":                                                             false,
		"root ::= s \"!\"\ns ::= [a-z ] s? s?":                                                                       false,
		"root ::= s \"!\"\ns ::= [a-z] s s | [a-z]":                                                                  false,
		"root ::= s \"!\"\ns ::= [a-z] (s)*":                                                                         false,
		"root ::= s \"!\"\ns ::= \"a\" (\"a\" s)? (\"a\" s)?":                                                        false,
		"root ::= s \"!\"\ns ::= \"a\" (\"b\" s)? (\"b\" s)?":                                                        false,
		"root ::= a \"!\"\na ::= [a-z] b? a?\nb ::= [a-z] a? b?":                                                     false,
		"root ::= s\ns ::= \"(\" s \")\" | \"(\" s \")\" \"x\"? | \"y\"":                                             false,
		"root ::= s\ns ::= \"{left:\" s \",op:+}\" | \"{left:\" s \",op:-}\" | \"x\"":                                false,
		"root ::= s \"!\"\ns ::= \"z\" s? s? | d\nd ::= [a-y]+ | [b-x]+ | [c-w]+ | [d-v]+":                           false, // many letters, after some z
		"root ::= s \"!\"\ns ::= [a-z]{2} s? s?":                                                                     false,
		"root ::= s\ns ::= <[5]> s <[6]> | <[5]> s <[7]> | <[8]>":                                                    false,
		"root ::= s \"!\" # a line ends here\rs ::= [a-z ] s? s?":                                                    false,
		"root ::= s \"!\"\ns ::= [a-z ] s? s?\n#\x00\ns ::= \"a\"":                                                   false,
		"root ::= e root \"x\" | \"y\"\ne ::= f f\nf ::= \"a\"?":                                                     false, // begins with itself, which the engine does not see
		"root ::= \"" + strings.Repeat("x", 60) + "\" y\n" + busy + "y ::= e y \"a\" | \"b\"\ne ::= f\nf ::= \"x\"?": false, // likewise, far from where walks begin
		busy + "root ::= r0":                                   true,
		same + "a40 ::= \"x\"":                                 false, // 2^40 ways down
		doubling + "r30 ::= \"a\"?":                            false,
		`root ::= "` + strings.Repeat("ab", 5000) + `"{0,512}`: false,
		`root ::= "` + strings.Repeat("ab", 50_000) + `"`:      false,
		`root ::= [\x61-z] [^\x00-\u4FFF\u6000-\U0010FFFE]? [\u00e9\U0001F600-] [] [^] "" "\t\r\n"`: true,
	} {
		if err := checkGrammar(g); (err == nil) != ok {
			t.Errorf("%.80s: %v", g, err)
		}
	}
}

func TestAmbiguousPatterns(t *testing.T) {
	for p, ok := range map[string]bool{
		`^([a-z]+)+$`: true, `^([a-z]|[a-z])*$`: true, `^[^"\\]*(\.[a-z]{2,6})?$`: true, `^é*$`: true,
		`^([a-z]|[a-z]|[a-z])*$`: false, `^(?:a|[ab]|[abc])+$`: false, `^[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*$`: false,
	} {
		if _, err := checkPattern(p, false); (err == nil) != ok {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// TestRecursiveSchemas: a schema may contain itself where a text decides at once
// which alternative it takes.
func TestRecursiveSchemas(t *testing.T) {
	whole := func(first, defs string) string {
		return `{"type":"object","properties":{"root":{"$ref":"#/$defs/` + first + `"}},"required":["root"],"$defs":{` + defs + `}}`
	}
	object := func(properties, required string) string {
		return `{"type":"object","properties":{` + properties + `},"required":[` + required + `],"additionalProperties":false}`
	}
	nested := func(levels int, inner string, referred bool) string {
		place, more := "#/$defs/e", ""
		for i := range levels {
			place += "/properties/a"
			if referred {
				more += fmt.Sprintf(`,"r%d":{"$ref":%q}`, i, place)
			}
		}
		return `{"properties":{"a":` + strings.Repeat(`{"properties":{"a":`, levels-1) + inner + strings.Repeat("}}", levels-1) + more + `}}`
	}
	alike := func(n int, of string) (text string) {
		if of[0] == '"' {
			of = `{"properties":{` + of + `}}`
		}
		for i := range n {
			text += fmt.Sprintf(`,"%c":%s`, 0x4E00+i, of)
		}
		return text[1:]
	}
	copies := ""
	for i := range 12 {
		next := fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i+1)
		copies += fmt.Sprintf(`"d%d":{"properties":{"a":{"allOf":[%s,%s,%s]}}},`, i, next, next, next)
	}
	shared := func(n int) (text string) {
		for i := range n {
			text += fmt.Sprintf(`"a%d":{"anyOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]},`, i, i+1, i+1)
		}
		return text
	}
	const e = `{"$ref":"#/$defs/e"}`
	doubling := ""
	for i := range 30 {
		next := object(fmt.Sprintf(`"x":{"$ref":"#/$defs/d%d"}`, i+1), `"x"`)
		doubling += fmt.Sprintf(`"d%d":{"anyOf":[%s,%s]},`, i, next, next)
	}
	names := ""
	for i := range 199 {
		names += fmt.Sprintf(`"p%d":{},`, i)
	}
	names += `"p":{}`
	for s, ok := range map[string]bool{
		whole("e", `"e":`+object(`"value":{"type":"string"},"children":{"type":"array","items":`+e+`}`, `"value","children"`)):                                                                                       true,
		whole("e", `"e":`+object(`"value":{},"children":{"type":"array","items":`+e+`}`, ``)):                                                                                                                        true,
		whole("e", `"e":`+object(`"value":{"type":"number"},"next":{"anyOf":[`+e+`,{"type":"null"}]}`, `"value","next"`)):                                                                                            true,
		whole("e", `"e":{"allOf":[{"properties":{"k":{"type":"string"}}},{"properties":{"next":`+e+`}}]}`):                                                                                                           true,
		whole("e", `"e":{"type":["object","array","string"],"properties":{"a":`+e+`},"items":`+e+`,"additionalProperties":true}`):                                                                                    true,
		whole("e", `"e":{"anyOf":[{},`+object(`"a":`+e+`,"b":`+e, ``)+`]}`):                                                                                                                                          true,
		whole("e", `"e":{"anyOf":[`+object(`"op":{"const":"+"},"l":`+e+`,"r":`+e, `"op","l","r"`)+`,`+object(`"op":{"const":"-"},"l":`+e+`,"r":`+e, `"op","l","r"`)+`,{"type":"number"}]}`):                          true,
		whole("e", `"e":{"anyOf":[`+object(`"and":{"type":"array","items":`+e+`}`, `"and"`)+`,`+object(`"not":`+e, `"not"`)+`,`+object(`"field":{"type":"string"},"is":{"enum":[1,"a",null]}`, `"field","is"`)+`]}`): true,
		`{"type":"object","properties":{"type":{"enum":["div","form"]},"label":{"type":"string"},"children":{"type":"array","items":{"$ref":"#"}}},"required":["type","label","children"]}`:                          true,
		`{"oneOf":[` + strings.Repeat(`{"const":"v","title":"V"},`, 400) + `{"type":"null"}]}`:                                                                                                                       true,
		`{"anyOf":[` + strings.Repeat(`{"properties":{"v":{"type":"string"}}},`, 90) + `{}]}`:                                                                                                                        true,
		`{"anyOf":[` + strings.Repeat(`{"properties":{"v":{"type":"string"}}},`, 400) + `{}]}`:                                                                                                                       false,
		`{"enum":[` + strings.TrimSuffix(strings.Repeat(`"v",`, 400), ",") + `]}`:                                                                                                                                    true,
		`{"anyOf":[{"properties":{"kind":{"const":"a"}}},{"properties":{"in":{"$ref":"#/$defs/x"},"$defs":{}},"$defs":{"x":{"type":"string"}}}]}`:                                                                    true, // definitions inside
		whole("e", `"e":{"oneOf":[`+object(`"l":`+e+`,"op":{"const":"+"}`, `"l","op"`)+`,`+object(`"l":`+e+`,"op":{"const":"-"}`, `"l","op"`)+`,{"type":"number"}]}`):                                                false,
		whole("e", `"e":{"anyOf":[`+object(`"l":`+e+`,"op":{"const":"+"}`, ``)+`,`+object(`"l":`+e+`,"op":{"const":"-"}`, ``)+`]}`):                                                                                  false,
		whole("e", `"e":{"anyOf":[{"type":"array","items":`+e+`},{"type":"array","items":[`+e+`,`+e+`]}]}`):                                                                                                          false,
		whole("e", `"e":{"anyOf":[`+object(`"a":`+e, `"a"`)+`,{"allOf":[{"properties":{"a":`+e+`}}]},{"additionalProperties":`+e+`}]}`):                                                                              false,
		whole("e", `"e":{"anyOf":[{"const":1,"oneOf":[`+object(`"l":`+e, `"l"`)+`]},`+object(`"l":`+e, `"l"`)+`]}`):                                                                                                  false,
		whole("d0", doubling+`"d30":{"type":"string"}`):                                                                                                                                                              false,
		`{"type":"object","properties":{"a":{"type":"object","$defs":{"e":{"anyOf":[` + object(`"l":`+e, `"l"`) + `,` + object(`"l":`+e+`,"r":{}`, `"l","r"`) + `]}}},"b":` + e + `}}`:                               false, // definitions inside
		whole("e", `"e":{"anyOf":[`+object(`"a":{"$ref":"#/$defs/e/anyOf/0"}`, `"a"`)+`,{"type":"string"}]}`):                                                                                                        true,
		whole("e", `"e":{"anyOf":[`+object(`"a":{"$ref":"#/$defs/e/anyOf/00"}`, `"a"`)+`,{"type":"string"}]}`):                                                                                                       false, // engines take numbers in any form, and each as another reference
		`{"type":["object",null],"properties":{"a":{}}}`:                                                                                                                                                             false,
		`{"type":[["object"]],"properties":{"a":{}}}`:                                                                                                                                                                false,
		`{"type":["object","object"],"properties":{"a":{}}}`:                                                                                                                                                         false,
		`{"type":["object","null","array","string","number","integer","boolean"],"properties":{"a":{}}}`:                                                                                                             true,
		whole("e", `"e":`+nested(40, `{"type":"string","description":"`+strings.Repeat("x", 8000)+`"}`, true)):                                                                                                       false, // all levels, by references
		whole("e", `"e":`+nested(40, `{"type":"string","description":"`+strings.Repeat("x", 8000)+`"}`, false)):                                                                                                      true,
		whole("d0", copies+`"d12":{"type":"string"}`):                                                                                                                                                                false, // 3^12 visits of what allOf copies
		whole("d", `"d":{"properties":{"a":{"allOf":[{"$ref":"#/$defs/d"}]}}}`):                                                                                                                                      false, // without end
		`{"properties":{"a":{"allOf":[{"properties":{"x":{"type":"string"}}},{"$ref":"#/$defs/b"}]}},"$defs":{"b":{"properties":{"y":{"$ref":"#"}}}}}`:                                                               true,
		`{"properties":{` + alike(30, alike(33, `{"type":"string"}`)) + `}}`:                                                                                                                                         true, // all 990 of the inner ones have one name
		`{"properties":{` + alike(31, alike(33, `{"type":"string"}`)) + `}}`:                                                                                                                                         false,
		whole("a0", shared(40)+`"a40":{"type":"string"}`):                                                                                                                                                            false, // 2^40 ways down
		whole("f", `"f":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/f/anyOf/00"}},{"type":"array","items":{"$ref":"#/$defs/g/anyOf/ +1x"}}]},
			"g":{"anyOf":[{},{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/g/anyOf/01"}},{"type":"array","items":[{"$ref":"#/$defs/g/anyOf/1"}]}]}]}`): false,
		whole("a~1b", `"a~1b":{"type":"object"},"c/d":{"$ref":"#/$defs/c~1d/properties/x","properties":{"x":{}}}`):                                  true,
		`{"properties":{"a":{"$ref":"#/$defs/nowhere"}}}`:                                                                                           false,
		strings.Repeat(`{"properties":{"`+strings.Repeat("p", 250)+`":`, 9) + `{"type":"string"}` + strings.Repeat("}}", 9):                         false,
		`{"allOf":[` + strings.Repeat(`{"$ref":"#/$defs/a"},`, 499) + `{"$ref":"#/$defs/a"}],"$defs":{"a":{"properties":{` + names + `}}}}`:         false,
		`{"anyOf":[` + strings.Repeat(`{"type":[`+strings.Repeat(`"object",`, 499)+`"object"],"properties":{`+names+`}},`, 8) + `{"type":"null"}]}`: false,
	} {
		for param := range forms {
			want := ok || param == "tools" && strings.Contains(s, "nowhere") // engines may pass over it there
			if err := check(param, s, true); (err == nil) != want {
				t.Errorf("%s %.160s: %v", param, s, err)
			}
			if err := check(param, s, false); err != nil && !strings.Contains(err.Error(), "too long") {
				t.Errorf("for another engine: %s %.160s: %v", param, s, err)
			}
		}
	}
}

func BenchmarkConstraints(b *testing.B) {
	const schema = `{"type":"object","properties":{"root":{"$ref":"#/$defs/e"}},"$defs":{"e":{"type":"object",
		"properties":{"value":{"type":"string"},"size":{"type":"integer"},"children":{"type":"array","items":{"$ref":"#/$defs/e"}}}}}}`
	for name, fn := range map[string]func() error{
		"json":    func() error { return checkGrammar(jsonGrammar) },
		"program": func() error { return checkGrammar(programGrammar) },
		"schema":  func() error { return check("json_schema", schema, true) },
		"worst":   func() error { _ = checkGrammar("root ::= " + strings.Repeat("[a-b]{0,512} ", 31)); return nil },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := fn(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
