package jsonscan

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// reference is what Valid promises, said with the standard library.
func reference(body []byte) bool {
	if !utf8.Valid(body) || !json.Valid(body) {
		return false
	}
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if trimmed[0] != '{' {
		return false
	}
	depth, deepest, inString := 0, 0, false
	for i := 0; i < len(trimmed); i++ {
		switch c := trimmed[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest <= maxDepth
}

// agree fails unless Scan and encoding/json say the same of body and of the
// given members.
func agree(t interface{ Fatalf(string, ...any) }, body []byte, keys []string) {
	out := make([]Value, len(keys))
	err := Scan(body, keys, out)
	if (err == nil) != reference(body) {
		t.Fatalf("Scan of %q says %v, the reference %v", body, err, reference(body))
	}
	if err != nil {
		syntax := err.(*SyntaxError)
		if syntax.Offset < 0 || syntax.Offset > len(body) {
			t.Fatalf("offset %d of %d", syntax.Offset, len(body))
		}
		return
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		t.Fatalf("the reference does not decode %q: %v", body, err)
	}
	for i, key := range keys {
		raw, present := members[key]
		v := out[i]
		if present != (v.Kind != Absent) || !bytes.Equal(raw, v.Raw) {
			t.Fatalf("%q of %q is %q, the reference has %q", key, body, v.Raw, raw)
		}
		if !present {
			continue
		}
		var decoded any
		if err := json.Unmarshal(raw, &decoded); err != nil {
			// A number too large for a float is the only thing left.
			continue
		}
		checkValue(t, v, decoded)
	}
}

func checkValue(t interface{ Fatalf(string, ...any) }, v Value, want any) {
	switch want := want.(type) {
	case string:
		if v.Kind != String || v.String() != want {
			t.Fatalf("%q read as %q", v.Raw, v.String())
		}
	case bool:
		if v.Kind != Bool || v.Bool() != want {
			t.Fatalf("%q read as %v", v.Raw, v.Bool())
		}
	case []any:
		if v.Kind != Array || v.Len() != len(want) || v.Empty() != (len(want) == 0) {
			t.Fatalf("%q has %d items, want %d", v.Raw, v.Len(), len(want))
		}
	case map[string]any:
		// Repeated members count once in a map.
		if v.Kind != Object || v.Len() < len(want) || v.Empty() != (len(want) == 0) {
			t.Fatalf("%q has %d members, want %d", v.Raw, v.Len(), len(want))
		}
	case nil:
		if v.Kind != Null {
			t.Fatalf("%q is %v", v.Raw, v.Kind)
		}
	}
}

// asked are the names the properties look for; documents use them often.
var asked = []string{"model", "stream", "input", "", "é", "a\"b"}

func document() *rapid.Generator[string] {
	space := rapid.SampledFrom([]string{"", "", " ", "\n\t"})
	name := rapid.SampledFrom([]string{`"model"`, `"mod\u0065l"`, `"stream"`, `"input"`, `""`, `"é"`, `"\u00E9"`, `"a\"b"`, `"other"`})
	scalar := rapid.OneOf(
		rapid.SampledFrom([]string{"null", "true", "false", "0", "-1.5e+3", `""`, `"\ud83d\ude00"`, `"\udc00\ud800"`, "1e999"}),
		rapid.Map(rapid.String(), func(s string) string { b, _ := json.Marshal(s); return string(b) }),
		rapid.Map(rapid.Int(), func(n int) string { b, _ := json.Marshal(n); return string(b) }),
	)
	var value func(depth int) *rapid.Generator[string]
	object := func(depth int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			s := "{" + space.Draw(t, "s")
			for i := range rapid.IntRange(0, 4).Draw(t, "members") {
				if i > 0 {
					s += ","
				}
				s += space.Draw(t, "s") + name.Draw(t, "name") + space.Draw(t, "s") + ":" + space.Draw(t, "s") + value(depth-1).Draw(t, "v") + space.Draw(t, "s")
			}
			return s + "}"
		})
	}
	array := func(depth int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			s := "[" + space.Draw(t, "s")
			for i := range rapid.IntRange(0, 4).Draw(t, "items") {
				if i > 0 {
					s += "," + space.Draw(t, "s")
				}
				s += value(depth-1).Draw(t, "v") + space.Draw(t, "s")
			}
			return s + "]"
		})
	}
	value = func(depth int) *rapid.Generator[string] {
		if depth <= 0 {
			return scalar
		}
		return rapid.OneOf(scalar, scalar, object(depth), array(depth))
	}
	return object(3)
}

func TestAgreesWithEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		agree(t, []byte(document().Draw(t, "document")), asked)
	})
}

func TestAgreesOnMutatedDocuments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(document().Draw(t, "document"))
		for range rapid.IntRange(1, 3).Draw(t, "mutations") {
			at := rapid.IntRange(0, len(body)-1).Draw(t, "at")
			c := rapid.SampledFrom([]byte("{}[]\",:\\ \x00\n0-+.eEtfnu\xff\xc3\xa9")).Draw(t, "byte")
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				body[at] = c
			case 1:
				body = append(body[:at:at], append([]byte{c}, body[at:]...)...)
			default:
				if body = append(body[:at:at], body[at+1:]...); len(body) == 0 {
					body = []byte{c}
				}
			}
		}
		agree(t, body, asked)
	})
}

// Set and Remove change one member and nothing else a reader sees.
func TestEditsAgainstMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(document().Filter(func(s string) bool { return valid([]byte(s)) }).Draw(t, "document"))
		key := rapid.SampledFrom(asked).Draw(t, "key")
		text := rapid.String().Draw(t, "text")
		before := decode(t, body)

		set, err := SetString(body, key, text)
		if err != nil {
			t.Fatal(err)
		}
		after := decode(t, set)
		var got string
		if err := json.Unmarshal(after[key], &got); err != nil || got != text {
			t.Fatalf("Set made %s of %s: %q, want %q (%v)", set, body, got, text, err)
		}
		removed, err := Remove(body, key)
		if err != nil {
			t.Fatal(err)
		}
		without := decode(t, removed)
		if _, there := without[key]; there {
			t.Fatalf("Remove made %s of %s", removed, body)
		}
		delete(before, key)
		delete(after, key)
		if !reflect.DeepEqual(before, after) || !reflect.DeepEqual(before, without) {
			t.Fatalf("other members changed: %s to %s and %s", body, set, removed)
		}
	})
}

func decode(t *rapid.T, body []byte) map[string]json.RawMessage {
	m := make(map[string]json.RawMessage)
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return m
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"model":"a","stream":true,"input":[1,2,{"x":null}]}`, `{"mod\u0065l":"\ud83d\ude00"}`, `{"a":-0.1e+5}`, `{"a":"` + "\xff" + `"}`,
		"\xEF\xBB\xBF{}", `{"a":[[[[]]]]}`, `{"a":1,}`, ` { } `, `{"":"","":{}}`, `{"a":"0123456789012345678901234567890123456789é\n"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		agree(t, body, asked)
		if valid(body) {
			for _, key := range asked {
				set, err := SetString(body, key, "x")
				if err != nil || !reference(set) {
					t.Fatalf("Set made %q of %q: %v", set, body, err)
				}
				removed, err := Remove(body, key)
				if err != nil || !reference(removed) {
					t.Fatalf("Remove made %q of %q: %v", removed, body, err)
				}
			}
		}
	})
}
