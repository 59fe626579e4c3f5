package jsonscan

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
)

// Kind is the JSON type of a value.
type Kind uint8

// The kinds. The zero Kind is a member the document does not have.
const (
	Absent Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

var kindNames = [...]string{"absent", "null", "boolean", "number", "string", "array", "object"}

// String names the kind as an error message would.
func (k Kind) String() string { return kindNames[k] }

// kindOf classifies a valid value by its first byte.
func kindOf(c byte) Kind {
	switch c {
	case '"':
		return String
	case '{':
		return Object
	case '[':
		return Array
	case 't', 'f':
		return Bool
	case 'n':
		return Null
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return Number
	}
	return Absent
}

// Value is one member's value as written in the body. The zero Value is an absent member.
type Value struct {
	Kind Kind
	Raw  []byte // the value's bytes inside the body, quotes included; not a copy
}

// Set reports whether the value is present and not null.
func (v Value) Set() bool { return v.Kind > Null }

// Empty reports whether the value is absent, null, "", [] or {}. Numbers and booleans are never empty.
func (v Value) Empty() bool {
	switch v.Kind {
	case Absent, Null:
		return true
	case String:
		return len(v.Raw) == 2
	case Array, Object:
		return skipSpace(v.Raw, 1) == len(v.Raw)-1
	}
	return false
}

// Len counts the items of an array or members of an object; it is 0 for every other kind.
func (v Value) Len() (n int) {
	w := WalkOf(v.Raw)
	if v.Kind == Object {
		w.Object(func([]byte) bool { n++; return true })
	} else {
		w.Array(func() bool { n++; return true })
	}
	return n
}

// First returns the kind of an array's first item, Absent for an empty array or a value of another kind.
func (v Value) First() Kind {
	if v.Kind != Array {
		return Absent
	}
	return kindOf(v.Raw[skipSpace(v.Raw, 1)])
}

// Bool returns the value of a boolean and false for every other kind.
func (v Value) Bool() bool { return v.Kind == Bool && v.Raw[0] == 't' }

// Int returns a whole number, also one that is written as a fraction or with an exponent. ok is false for any other
// value.
func (v Value) Int() (n int64, ok bool) {
	if v.Kind != Number {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(v.Raw), 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(v.Raw), 64)
	return int64(f), err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53
}

// Bytes returns the text of a string, unescaped, and nil for every other kind. Without escapes it is a part of the body
// and must not be changed or kept longer than the body.
func (v Value) Bytes() []byte {
	if v.Kind != String || len(v.Raw) < 2 {
		return nil
	}
	if text := v.Raw[1 : len(v.Raw)-1]; bytes.IndexByte(text, '\\') < 0 {
		return text
	}
	var text string
	_ = json.Unmarshal(v.Raw, &text) // it is valid
	return []byte(text)
}

// String returns the text of a string, unescaped, as a copy; for every other kind it returns "".
func (v Value) String() string { return string(v.Bytes()) }

// Marshal is [json.Marshal], but leaves <, > and & readable.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// TrimMark returns a text without the byte order mark that some programs write before it.
func TrimMark(text []byte) []byte { return bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) }
