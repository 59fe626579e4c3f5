package jsonscan

import (
	"bytes"
	"fmt"
)

// maxDepth is how deep a document may nest; the outer object is level 1.
const maxDepth = 1000

// SyntaxError says why a body is not acceptable.
type SyntaxError struct {
	Offset int    // index of the offending byte, len(body) when the end came too early
	Reason string // for the client; holds no part of the body
}

// Error implements error.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s at byte %d", e.Reason, e.Offset)
}

func fail(offset int, reason string) error { return &SyntaxError{Offset: offset, Reason: reason} }

// Scan validates body and stores in out[i] the value of the top-level member
// keys[i], the zero Value when there is none. out must be at least as long as
// keys. The error is a [*SyntaxError]; out is then not to be used.
//
// Scan does not allocate unless it fails or a name has escapes. The values are
// parts of body.
func Scan(body []byte, keys []string, out []Value) error {
	out = out[:len(keys)]
	clear(out)
	m, err := Open(body)
	if err != nil {
		return err
	}
	for m.Next() {
		name := m.Name()
		for i, key := range keys {
			if string(name) == key {
				out[i] = m.value
				break
			}
		}
	}
	return m.err
}

// Members walks the top-level members of a document and validates it on the
// way, as [Scan] does, which is made of it. Until Next has returned false and
// Err nil, what was read may be the beginning of a document that is no good.
//
// Next does not allocate.
type Members struct {
	body []byte
	pos  int // behind what was read so far
	err  error

	// The member next returned.
	key              []byte // inside of the quotes
	escaped          bool   // key holds escapes
	value            Value  // of it
	gap, start, stop int    // end of the byte before the member, start and end of its value

	count int // members read
}

// Name returns the member's name, unescaped. It is a part of the body unless
// the body spells it with escapes.
func (m *Members) Name() []byte {
	if !m.escaped {
		return m.key
	}
	return unescape(m.key)
}

// Value returns the member's value.
func (m *Members) Value() Value { return m.value }

// Err returns the [*SyntaxError] that ended the walk, nil for a document that
// was read to its end.
func (m *Members) Err() error { return m.err }

// Span returns where the member stands, for [Blank].
func (m *Members) Span() Span { return Span{from: m.gap, to: m.stop, n: m.count} }

// Open returns the members of a document after reading its opening brace. Its error is a [*SyntaxError].
func Open(body []byte) (Members, error) {
	i := skipSpace(body, 0)
	if i == len(body) {
		return Members{}, fail(i, "body is empty")
	}
	if body[i] != '{' {
		return Members{}, fail(i, "body is not a JSON object")
	}
	return Members{body: body, pos: i + 1}, nil
}

// Next reads one member. It returns false at the end of the document, which it
// then has validated to the last byte, or with an error.
func (m *Members) Next() bool {
	more, err := m.step()
	m.err = err
	return more && err == nil
}

func (m *Members) step() (more bool, err error) {
	b := m.body
	i := skipSpace(b, m.pos)
	m.gap = m.pos
	switch {
	case i == len(b):
		return false, fail(i, "object is not closed")
	case b[i] == '}':
		m.pos = i + 1
		if i = skipSpace(b, i+1); i < len(b) {
			return false, fail(i, "text after the object")
		}
		return false, nil
	case m.count == 0:
	case b[i] != ',':
		return false, fail(i, "comma or } expected")
	default:
		m.gap = i + 1
		i = skipSpace(b, i+1)
	}
	if i == len(b) || b[i] != '"' {
		return false, fail(i, "member name expected")
	}
	end, err := skipString(b, i)
	if err != nil {
		return false, err
	}
	m.key = b[i+1 : end-1]
	m.escaped = bytes.IndexByte(m.key, '\\') >= 0
	i = skipSpace(b, end)
	if i == len(b) || b[i] != ':' {
		return false, fail(i, "colon expected")
	}
	i = skipSpace(b, i+1)
	if i == len(b) {
		return false, fail(i, "value expected")
	}
	kind, ok := kindOf(b[i])
	if !ok {
		return false, fail(i, "value expected")
	}
	end, in, err := skipValue(b, i)
	if err != nil {
		return false, err
	}
	m.value = Value{Kind: kind, Raw: b[i:end:end], inside: in}
	m.start, m.stop, m.pos = i, end, end
	m.count++
	return true, nil
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}
