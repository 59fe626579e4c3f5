package jsonscan

import "bytes"

// Walk reads a JSON value that is known to be valid: one that [Scan] or [Members] has read, or a part of one. It goes
// forward only and does not allocate. It goes to the end of a text that is not valid.
type Walk struct {
	b []byte
	i int
}

// WalkOf returns a walk positioned before a valid JSON value.
func WalkOf(raw []byte) Walk { return Walk{b: raw} }

// Kind returns the kind of the next value.
func (w *Walk) Kind() Kind {
	if w.i = skipSpace(w.b, w.i); w.i == len(w.b) {
		return Absent
	}
	return kindOf(w.b[w.i])
}

// Raw passes the value and returns it.
func (w *Walk) Raw() Value {
	kind, from := w.Kind(), w.i
	w.i = skipValidValue(w.b, from)
	return Value{Kind: kind, Raw: w.b[from:w.i:w.i]}
}

// skipValidValue returns the index behind the valid value at b[i].
func skipValidValue(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = skipValidString(b, i)
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		default:
			if depth > 0 {
				continue
			}
			if n := bytes.IndexAny(b[i:], ",]} \t\r\n"); n >= 0 {
				return i + n
			}
			return len(b)
		}
		if depth <= 0 {
			return min(i+1, len(b))
		}
	}
	return len(b)
}

// skipValidString returns the index of the quote that closes the string at b[i].
func skipValidString(b []byte, i int) int {
	for {
		n := bytes.IndexByte(b[i+1:], '"')
		if n < 0 {
			return len(b)
		}
		i += 1 + n
		escapes := i
		for b[escapes-1] == '\\' {
			escapes--
		}
		if (i-escapes)%2 == 0 {
			return i
		}
	}
}

// Object passes the next object. For each member it calls fn with the name, unescaped; fn passes
// the value or leaves it, and ends the walk by returning false. Object reports whether it came to the end. A value of
// another kind is passed without a call.
func (w *Walk) Object(fn func(name []byte) bool) bool {
	c, ok := w.enter(Object)
	for ok && w.next(&c) {
		if !fn(c.key()) {
			return false
		}
		w.skip(&c)
	}
	return true
}

// Array is [Walk.Object] for the items of an array.
func (w *Walk) Array(fn func() bool) bool {
	c, ok := w.enter(Array)
	for ok && w.next(&c) {
		if !fn() {
			return false
		}
		w.skip(&c)
	}
	return true
}

// enter opens the next container, or skips a value of another kind.
func (w *Walk) enter(kind Kind) (c container, ok bool) {
	if w.Kind() != kind {
		w.Raw()
		return c, false
	}
	return open(w.b, w.i), true
}

// next goes to the next item, or behind the container.
func (w *Walk) next(c *container) bool {
	more, err := c.next()
	if w.i = c.pos; err != nil {
		w.i = len(w.b)
	}
	return more
}

// skip passes an item, unless the walk has.
func (w *Walk) skip(c *container) {
	if w.i == c.pos {
		w.Raw()
	}
	c.pos = w.i
}
