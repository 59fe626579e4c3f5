package jsonscan

import (
	"bytes"
	"io"
)

// Walk reads a JSON value that is known to be valid: one that [Scan] or
// [Members] has read, or a part of one. It goes forward only, looks at no byte
// inside a string twice, and does not allocate. What it reads of a text that is
// no valid JSON means nothing, but it ends and stays inside the text.
type Walk struct {
	b []byte
	i int
}

// WalkOf returns a walk that stands before a valid JSON value.
func WalkOf(raw []byte) Walk { return Walk{b: raw} }

// Kind returns the kind of the value that the walk stands before.
func (w *Walk) Kind() Kind {
	w.i = skipSpace(w.b, w.i)
	if w.i >= len(w.b) {
		return Absent
	}
	k, _ := kindOf(w.b[w.i])
	return k
}

// Offset returns how many bytes the walk has gone through.
func (w *Walk) Offset() int { return w.i }

// Raw passes the value and returns it.
func (w *Walk) Raw() Value {
	kind := w.Kind()
	from := w.i
	switch kind {
	case String:
		w.text()
	case Array, Object:
		w.container()
	default:
		for w.i < len(w.b) && !ends(w.b[w.i]) {
			w.i++
		}
	}
	return Value{Kind: kind, Raw: w.b[from:w.i:w.i]}
}

// ends reports a byte that cannot be part of a number or a literal.
func ends(c byte) bool {
	switch c {
	case ',', ']', '}', ':', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}

// container passes an object or an array.
func (w *Walk) container() {
	depth := 0
	for w.i < len(w.b) {
		switch w.b[w.i] {
		case '"':
			w.text()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		w.i++
		if depth == 0 {
			return
		}
	}
}

// text passes a string.
func (w *Walk) text() {
	from := w.i + 1
	w.i = from
	for w.i < len(w.b) {
		n := bytes.IndexByte(w.b[w.i:], '"')
		if n < 0 {
			break
		}
		end := w.i + n
		w.i = end + 1
		escapes := 0
		for end-escapes > from && w.b[end-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return
		}
	}
	w.i = len(w.b)
}

// Object passes the object that the walk stands before. For each member it
// calls fn with the name, unescaped; fn passes the value or leaves it, and ends
// the walk by returning false. Object reports whether it came to the end. A
// value of another kind is passed without a call.
func (w *Walk) Object(fn func(name []byte) bool) bool {
	if w.Kind() != Object {
		w.Raw()
		return true
	}
	return w.each('}', func() bool {
		if w.b[w.i] != '"' {
			w.i = len(w.b)
			return false
		}
		from := w.i
		w.text()
		name := Value{Kind: String, Raw: w.b[from:w.i]}
		if w.i = skipSpace(w.b, w.i); w.i < len(w.b) && w.b[w.i] == ':' {
			w.i++
		}
		return w.item(func() bool { return fn(name.Bytes()) })
	})
}

// Array is [Walk.Object] for the items of an array.
func (w *Walk) Array(fn func() bool) bool {
	if w.Kind() != Array {
		w.Raw()
		return true
	}
	return w.each(']', func() bool { return w.item(fn) })
}

// item calls fn and passes the value that it left.
func (w *Walk) item(fn func() bool) bool {
	w.i = skipSpace(w.b, w.i)
	from := w.i
	if !fn() {
		return false
	}
	if w.i == from {
		w.Raw()
	}
	return true
}

// each calls fn at each item of a container.
func (w *Walk) each(closing byte, fn func() bool) bool {
	for w.i++; ; {
		for w.i = skipSpace(w.b, w.i); w.i < len(w.b) && w.b[w.i] == ','; w.i = skipSpace(w.b, w.i) {
			w.i++
		}
		if w.i >= len(w.b) {
			return true
		}
		if w.b[w.i] == closing {
			w.i++
			return true
		}
		from := w.i
		if !fn() {
			return false
		}
		if w.i == from {
			w.i++ // not valid JSON
		}
	}
}

// TextReader returns a reader of a string's text, unescaped as it is read, so
// that the head of a long one costs no copy of the whole. For a value of
// another kind it is empty.
func (v Value) TextReader() *TextReader {
	if v.Kind != String {
		return &TextReader{}
	}
	return &TextReader{text: v.quoted()}
}

// TextReader reads the text of a string.
type TextReader struct{ text []byte }

// Read implements [io.Reader].
func (r *TextReader) Read(p []byte) (n int, err error) {
	for n < len(p) && len(r.text) > 0 {
		plain := bytes.IndexByte(r.text[:min(len(r.text), len(p)-n)], '\\')
		if plain != 0 {
			if plain < 0 {
				plain = min(len(r.text), len(p)-n)
			}
			n += copy(p[n:], r.text[:plain])
			r.text = r.text[plain:]
			continue
		}
		c, end := unescapeAt(r.text, 0)
		var buf [4]byte
		rune := append(buf[:0], string(c)...)
		if n+len(rune) > len(p) {
			if n > 0 {
				break
			}
			return 0, io.ErrShortBuffer
		}
		n += copy(p[n:], rune)
		r.text = r.text[end:]
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}
