package jsonscan

import "slices"

// Set returns a copy of body in which the top-level member key has the JSON value given. A repeated member is kept
// once, so that it does not matter which one a reader prefers; a missing one is added in front. Every other byte stays.
// The error is a [*SyntaxError], of body or of value.
func Set(body []byte, key string, value []byte) ([]byte, error) {
	if end, err := skipValue(value, 0, 1); err != nil {
		return nil, err
	} else if end < len(value) {
		return nil, fail(end, "text after the value")
	}
	m, err := Open(body)
	if err != nil {
		return nil, err
	}
	front := m.pos
	out := make([]byte, 0, len(body)+len(key)+len(value)+8)
	copied := 0
	for m.Next() {
		if string(m.Name()) != key {
			continue
		}
		if copied == 0 {
			out = append(out, body[:m.start]...)
			out = append(out, value...)
		} else {
			out = append(out, body[copied:m.gap-1]...) // without the comma
		}
		copied = m.pos
	}
	if m.err != nil {
		return nil, m.err
	}
	if copied == 0 {
		out = append(out, body[:front]...)
		name, _ := Marshal(key)
		out = append(append(out, name...), ':')
		out = append(out, value...)
		if m.count > 0 {
			out = append(out, ',')
		}
		copied = front
	}
	return append(out, body[copied:]...), nil
}

// SetString is [Set] with the text of a string.
func SetString(body []byte, key, text string) ([]byte, error) {
	value, _ := Marshal(text) // no error: a text always encodes
	return Set(body, key, value)
}

// Remove returns a copy of body without the top-level members of these names, however often they occur. The other
// members stay as they are. The error is a [*SyntaxError].
func Remove(body []byte, names ...string) ([]byte, error) {
	m, err := Open(body)
	if err != nil {
		return nil, err
	}
	out := append(make([]byte, 0, len(body)), body[:m.pos]...)
	kept, end := 0, m.pos
	for m.Next() {
		end = m.pos
		if slices.Contains(names, string(m.Name())) {
			continue
		}
		if kept > 0 {
			out = append(out, ',')
		}
		out = append(out, body[m.gap:m.pos]...)
		kept++
	}
	if m.err != nil {
		return nil, m.err
	}
	return append(out, body[end:]...), nil
}

// Span is the position of a member in a document.
type Span struct {
	from, to int // from the byte behind the comma or brace before it to the end of its value
	n        int // it is the nth member
}

// Span returns where the member stands, for [Blank].
func (m *Members) Span() Span { return Span{from: m.gap, to: m.pos, n: m.count} }

// Blank overwrites the members at the given places with blanks, commas included, so that body is a document without
// them. places are those of a valid body, in order.
func Blank(body []byte, places []Span) {
	for i, p := range places {
		if p.n > 1 {
			p.from-- // the comma; members before the first that stays lose the one behind them
		}
		for at := p.from; at < p.to; at++ {
			body[at] = ' '
		}
		if i+1 != p.n {
			continue // one before it stays
		}
		if next := skipSpace(body, p.to); next < len(body) && body[next] == ',' {
			body[next] = ' '
		}
	}
}
