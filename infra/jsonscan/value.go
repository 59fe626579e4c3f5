package jsonscan

import (
	"bytes"
	"fmt"
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

var kindNames = [...]string{
	Absent: "absent", Null: "null", Bool: "boolean", Number: "number", String: "string", Array: "array", Object: "object",
}

// String names the kind as an error message would.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// kindOf classifies a value by its first byte. ok is false when no JSON value
// begins so.
func kindOf(c byte) (k Kind, ok bool) {
	switch c {
	case '"':
		return String, true
	case '{':
		return Object, true
	case '[':
		return Array, true
	case 't', 'f':
		return Bool, true
	case 'n':
		return Null, true
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return Number, true
	}
	return Absent, false
}

// Value is one member's value as it stands in the body. The zero Value is an
// absent member.
type Value struct {
	Kind Kind
	Raw  []byte // the value's bytes inside the body, quotes included; not a copy

	inside
}

// Set reports whether the value is present and not null.
func (v Value) Set() bool { return v.Kind > Null }

// Empty reports whether the value is absent, null, "", [] or {}. Numbers and
// booleans are never empty.
func (v Value) Empty() bool {
	switch v.Kind {
	case Absent, Null:
		return true
	case String:
		return len(v.Raw) == 2
	case Array, Object:
		return v.items == 0
	}
	return false
}

// Depth returns how many levels of arrays and objects the value has: 0 for a
// scalar, 1 for a flat list. Only the values that [Scan] and [Members] give
// know it.
func (v Value) Depth() int { return v.inside.depth }

// HasObject reports whether the value is an object or holds one. Only the
// values that [Scan] and [Members] give know it.
func (v Value) HasObject() bool { return v.objects }

// Len returns the number of items of an array or members of an object, counted
// during the scan, and 0 for every other kind.
func (v Value) Len() int { return v.items }

// First returns the kind of an array's first item, Absent for an empty array
// or a value of another kind.
func (v Value) First() Kind {
	if v.Kind != Array || v.items == 0 {
		return Absent
	}
	k, _ := kindOf(v.Raw[skipSpace(v.Raw, 1)])
	return k
}

// Bool returns the value of a boolean and false for every other kind.
func (v Value) Bool() bool { return v.Kind == Bool && v.Raw[0] == 't' }

// Int returns a whole number, also one that is written as a fraction or with an exponent. ok is false for any other value.
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

// Bytes returns the text of a string, unescaped, and nil for every other kind.
// Without escapes it is a part of the body and must not be changed or kept
// longer than the body.
func (v Value) Bytes() []byte {
	if v.Kind != String {
		return nil
	}
	text := v.quoted()
	if bytes.IndexByte(text, '\\') < 0 {
		return text
	}
	return unescape(text)
}

// quoted returns what stands between the quotes of a string, nil for one that
// the text breaks off after its first quote.
func (v Value) quoted() []byte {
	if len(v.Raw) < 2 {
		return nil
	}
	return v.Raw[1 : len(v.Raw)-1]
}

// String returns the text of a string, unescaped, as a copy; for every other
// kind it returns "".
func (v Value) String() string { return string(v.Bytes()) }
