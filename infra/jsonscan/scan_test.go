package jsonscan

import (
	"errors"
	"strings"
	"testing"
)

// valid reports whether body is a document that Scan accepts.
func valid(body []byte) bool { return Scan(body, nil, nil) == nil }

func TestValid(t *testing.T) {
	deep := func(n int, open, closing string) string {
		return `{"a":` + strings.Repeat(open, n) + strings.Repeat(closing, n) + `}`
	}
	tests := []struct {
		name, body string
		reason     string // "" for a valid document
		offset     int
	}{
		{name: "empty object", body: `{}`},
		{name: "spaces", body: " \t\r\n{ \"a\" : [ 1 , 2 ] , \"b\" : { } } \n"},
		{name: "every kind", body: `{"a":null,"b":true,"c":false,"d":-0.5e+10,"e":"x","f":[],"g":{}}`},
		{name: "numbers", body: `{"a":[0,-0,1,-1,10,0.0,1e1,1E-1,1e+01,123456789012345678901234567890]}`},
		{name: "escapes", body: `{"a":"\"\\\/\b\f\n\r\tA\ud83d\ude00"}`},
		{name: "half of a surrogate pair", body: `{"a":"\ud800x"}`},
		{name: "numbers that no double holds", body: `{"a":[-1e400,1` + strings.Repeat("0", 400) + `]}`},
		{name: "UTF-8", body: `{"ключ":"值😀` + "\u007f\u2028" + `"}`},
		{name: "empty name, repeated", body: `{"":1,"":2}`},
		{name: "deepest", body: deep(maxDepth-1, "[", "]")},

		{name: "empty", body: "", reason: "body is empty"},
		{name: "only spaces", body: "  ", reason: "body is empty", offset: 2},
		{name: "array", body: "[]", reason: "body is not a JSON object"},
		{name: "string", body: `"a"`, reason: "body is not a JSON object"},
		{name: "byte order mark", body: "\xEF\xBB\xBF{}", reason: "body is not a JSON object"},
		{name: "two documents", body: "{}{}", reason: "text after the object", offset: 2},
		{name: "trailing text", body: "{} x", reason: "text after the object", offset: 3},
		{name: "trailing zero byte", body: "{}\x00", reason: "text after the object", offset: 2},
		{name: "open", body: "{", reason: "bracket is not closed", offset: 1},
		{name: "open member", body: `{"a":1`, reason: "bracket is not closed", offset: 6},
		{name: "trailing comma", body: `{"a":1,}`, reason: "member name expected", offset: 7},
		{name: "leading comma", body: `{,"a":1}`, reason: "member name expected", offset: 1},
		{name: "missing comma", body: `{"a":1"b":2}`, reason: "comma or closing bracket expected", offset: 6},
		{name: "missing colon", body: `{"a" 1}`, reason: "colon expected", offset: 5},
		{name: "missing value", body: `{"a":}`, reason: "value expected", offset: 5},
		{name: "unquoted name", body: `{a:1}`, reason: "member name expected", offset: 1},
		{name: "single quotes", body: `{'a':1}`, reason: "member name expected", offset: 1},
		{name: "comment", body: `{/**/}`, reason: "member name expected", offset: 1},
		{name: "wrong bracket", body: `{"a":[1}`, reason: "comma or closing bracket expected", offset: 7},
		{name: "wrong brace", body: `{"a":{"b":1]}`, reason: "comma or closing bracket expected", offset: 11},
		{name: "comma in empty array", body: `{"a":[,]}`, reason: "value expected", offset: 6},
		{name: "trailing comma in array", body: `{"a":[1,]}`, reason: "value expected", offset: 8},
		{name: "trailing comma inside", body: `{"a":{"b":1,}}`, reason: "member name expected", offset: 12},
		{name: "array is open", body: `{"a":[1`, reason: "bracket is not closed", offset: 7},
		{name: "array is just open", body: `{"a":[`, reason: "bracket is not closed", offset: 6},
		{name: "value is missing at the end", body: `{"a":[1,`, reason: "value expected", offset: 8},
		{name: "word", body: `{"a":nul}`, reason: "value expected", offset: 5},
		{name: "upper case", body: `{"a":True}`, reason: "value expected", offset: 5},
		{name: "NaN", body: `{"a":NaN}`, reason: "value expected", offset: 5},
		{name: "plus", body: `{"a":+1}`, reason: "value expected", offset: 5},
		{name: "leading zero", body: `{"a":01}`, reason: "comma or closing bracket expected", offset: 6},
		{name: "minus alone", body: `{"a":-}`, reason: "digit expected", offset: 6},
		{name: "point first", body: `{"a":.5}`, reason: "value expected", offset: 5},
		{name: "point last", body: `{"a":1.}`, reason: "digit expected", offset: 7},
		{name: "exponent without digits", body: `{"a":1e+}`, reason: "digit expected", offset: 8},
		{name: "hexadecimal", body: `{"a":0x1}`, reason: "comma or closing bracket expected", offset: 6},
		{name: "string is open", body: `{"a":"b`, reason: "string is not closed", offset: 7},
		{name: "escaped end", body: `{"a":"b\"`, reason: "string is not closed", offset: 9},
		{name: "backslash last", body: `{"a":"\`, reason: "string is not closed", offset: 7},
		{name: "line break in string", body: "{\"a\":\"b\nc\"}", reason: "control character in string", offset: 7},
		{name: "zero byte in string", body: "{\"a\":\"\x00\"}", reason: "control character in string", offset: 6},
		{name: "unknown escape", body: `{"a":"\x41"}`, reason: "unknown escape in string", offset: 6},
		{name: "short unicode escape", body: `{"a":"\u12"}`, reason: `\u needs four hexadecimal digits`, offset: 6},
		{name: "bad unicode escape", body: `{"a":"\u12g4"}`, reason: `\u needs four hexadecimal digits`, offset: 6},
		{name: "not UTF-8", body: "{\"a\":\"b\xffc\"}", reason: "string is not UTF-8", offset: 7},
		{name: "overlong", body: "{\"a\":\"\xc0\xaf\"}", reason: "string is not UTF-8", offset: 6},
		{name: "encoded surrogate", body: "{\"a\":\"\xed\xa0\x80\"}", reason: "string is not UTF-8", offset: 6},
		{name: "cut character", body: "{\"a\":\"\xe2\x82\"}", reason: "string is not UTF-8", offset: 6},
		{name: "name not UTF-8", body: "{\"\xff\":1}", reason: "string is not UTF-8", offset: 2},
		{name: "wide byte outside", body: "{\"a\":1\xc2\xa0}", reason: "comma or closing bracket expected", offset: 6},
		{name: "form feed", body: "{\f}", reason: "member name expected", offset: 1},
		{name: "too deep", body: deep(maxDepth, "[", "]"), reason: "nesting too deep", offset: 5 + maxDepth - 1},
		{name: "too deep by objects", body: deep(maxDepth, `{"a":`, "}"), reason: "nesting too deep", offset: 5 + 5*(maxDepth-1)},
		{name: "bomb", body: `{"a":` + strings.Repeat("[", 1<<20), reason: "nesting too deep", offset: 5 + maxDepth - 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Scan([]byte(tt.body), nil, nil)
			if valid([]byte(tt.body)) != (tt.reason == "") {
				t.Fatalf("Valid disagrees with %q", tt.reason)
			}
			if tt.reason == "" {
				return
			}
			syntax, ok := errors.AsType[*SyntaxError](err)
			if !ok || syntax.Reason != tt.reason || syntax.Offset != tt.offset {
				t.Errorf("got %v, want %q at %d", err, tt.reason, tt.offset)
			}
		})
	}
}

// A special byte is found wherever it is in the words of the fast path.
func TestStringsAtEveryOffset(t *testing.T) {
	for n := range 100 {
		pad := strings.Repeat("x", n)
		for _, bad := range []string{"\x00", "\x1f", "\n", "\xff", "\\q"} {
			if valid([]byte(`{"a":"` + pad + bad + pad + `"}`)) {
				t.Errorf("%q after %d bytes is accepted", bad, n)
			}
		}
		for _, good := range []string{" ", "!", "#", "\x7f", "[", "]", "é", "€", "😀", `\\`, `\"`, `\u0041`} {
			text := pad + good + pad
			var out [1]Value
			if err := Scan([]byte(`{"a":"`+text+`"}`), []string{"a"}, out[:]); err != nil || string(out[0].Raw) != `"`+text+`"` {
				t.Errorf("%q after %d bytes: %v, %s", good, n, err, out[0].Raw)
			}
		}
	}
}

func TestValues(t *testing.T) {
	body := []byte(`{"model":"a","mod\u0065l":"qw\u0065n\/3\n\ud83d\ude00","stream":true,"n":-1.5,"none":null,` +
		`"list":[[1,2],{"x":[3,4]},"a,b"],"object":{"p":[1,2],"q":{}},"e1":[ ],"e2":{ },"e3":"","off":false}`)
	keys := []string{"model", "stream", "n", "none", "list", "object", "e1", "e2", "e3", "off", "missing"}
	want := []struct {
		kind  Kind
		text  string
		len   int
		empty bool
		first Kind
	}{
		{kind: String, text: "qwen/3\n😀"}, // the last of two, its name escaped
		{kind: Bool},
		{kind: Number},
		{kind: Null, empty: true},
		{kind: Array, len: 3, first: Array},
		{kind: Object, len: 2},
		{kind: Array, empty: true},
		{kind: Object, empty: true},
		{kind: String, empty: true},
		{kind: Bool},
		{kind: Absent, empty: true},
	}
	out := make([]Value, len(keys))
	if err := Scan(body, keys, out); err != nil {
		t.Fatal(err)
	}
	for i, w := range want {
		v := out[i]
		if v.Kind != w.kind || v.String() != w.text || v.Len() != w.len || v.Empty() != w.empty || v.First() != w.first || v.Set() != (w.kind > Null) {
			t.Errorf("%s = %v %q, len %d, empty %v, first %v", keys[i], v.Kind, v.String(), v.Len(), v.Empty(), v.First())
		}
	}
	if !out[1].Bool() || out[9].Bool() || out[0].Bool() || string(out[2].Raw) != "-1.5" {
		t.Error("booleans or numbers are misread")
	}
}

func TestScanClearsOut(t *testing.T) {
	out := []Value{{Kind: String, Raw: []byte(`"old"`)}}
	if err := Scan([]byte(`{}`), []string{"a"}, out); err != nil || out[0].Kind != Absent {
		t.Errorf("%v, %+v", err, out[0])
	}
}
