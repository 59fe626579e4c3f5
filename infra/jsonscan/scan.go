package jsonscan

// Scan validates body and stores in out[i] the value of the top-level member keys[i], the zero Value when there is
// none. out must be at least as long as keys. The error is a [*SyntaxError]; out is then not to be used. The values are
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

// Members goes through the top-level members of a document and validates it on the way. Until Next has returned false
// and Err nil, what was read may be the beginning of a document that is not valid.
type Members struct {
	container
	valid bool // the document is part of one that was read
	err   error
	value Value
	start int // of the value
}

// Open returns the members of a document after reading its opening brace. Its error is a [*SyntaxError].
func Open(body []byte) (Members, error) {
	i := skipSpace(body, 0)
	switch {
	case i == len(body):
		return Members{}, fail(i, "body is empty")
	case body[i] != '{':
		return Members{}, fail(i, "body is not a JSON object")
	}
	return Members{container: open(body, i)}, nil
}

// MembersOf returns the members of an object in a document that was read. Next does not validate it again.
func MembersOf(v Value) Members { return Members{container: open(v.Raw, 0), valid: true} }

// Next reads one member. It returns false at the end of the document, which it then has validated to the last byte, or
// with an error.
func (m *Members) Next() bool {
	more, err := m.next()
	switch {
	case err != nil:
	case !more:
		if i := skipSpace(m.b, m.pos); i < len(m.b) {
			err = fail(i, "text after the object")
		}
	default:
		m.start = m.pos
		if m.valid {
			m.pos = skipValidValue(m.b, m.start)
		} else {
			m.pos, err = skipValue(m.b, m.start, 1)
		}
		if err == nil {
			m.value = Value{Kind: kindOf(m.b[m.start]), Raw: m.b[m.start:m.pos:m.pos]}
		}
	}
	m.err = err
	return more && err == nil
}

// Name returns the member's name, unescaped. It is a part of the body unless the body spells it with escapes.
func (m *Members) Name() []byte { return m.key() }

// Value returns the member's value.
func (m *Members) Value() Value { return m.value }

// Err returns the [*SyntaxError] that ended the walk, nil for a document that was read to its end.
func (m *Members) Err() error { return m.err }
