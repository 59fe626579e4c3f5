package jsonscan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
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

// container reads an object or an array item by item.
type container struct {
	b   []byte
	pos int // behind what was read so far; before the value after next has returned true

	closing    byte // bracket
	count      int  // items read
	gap        int  // behind the comma or the bracket before the item
	name       int  // where a member's name starts and ends, quotes included
	afterNames int
}

// open returns the container that starts at b[i].
func open(b []byte, i int) container {
	return container{b: b, pos: i + 1, gap: i + 1, closing: b[i] + 2} // '}' and ']' lie two above their opening byte
}

// next goes to the next item's value, which the caller passes. It returns false behind the closing bracket, or with an
// error.
func (c *container) next() (bool, error) {
	b, i := c.b, skipSpace(c.b, c.pos)
	c.gap = c.pos
	switch {
	case i == len(b):
		return false, fail(i, "bracket is not closed")
	case b[i] == c.closing:
		c.pos = i + 1
		return false, nil
	case c.count == 0:
	case b[i] != ',':
		return false, fail(i, "comma or closing bracket expected")
	default:
		c.gap = i + 1
		i = skipSpace(b, i+1)
	}
	c.count++
	if c.closing == '}' {
		if i == len(b) || b[i] != '"' {
			return false, fail(i, "member name expected")
		}
		end, err := skipString(b, i)
		if err != nil {
			return false, err
		}
		c.name, c.afterNames = i, end
		if i = skipSpace(b, end); i == len(b) || b[i] != ':' {
			return false, fail(i, "colon expected")
		}
		i = skipSpace(b, i+1)
	}
	c.pos = i
	return true, nil
}

// key returns the name of the member that next went to, unescaped.
func (c *container) key() []byte {
	return Value{Kind: String, Raw: c.b[c.name:c.afterNames]}.Bytes()
}

// skipValue validates the value at b[i], which has depth levels around it, and returns the index behind it.
func skipValue(b []byte, i, depth int) (end int, err error) {
	if i == len(b) {
		return 0, fail(i, "value expected")
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		if depth == maxDepth {
			return 0, fail(i, "nesting too deep")
		}
		c := open(b, i)
		for {
			more, err := c.next()
			if err == nil && more {
				c.pos, err = skipValue(b, c.pos, depth+1)
			}
			if err != nil || !more {
				return c.pos, err
			}
		}
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	}
	return skipNumber(b, i)
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

func skipWord(b []byte, i int, word string) (end int, err error) {
	if end = i + len(word); end <= len(b) && string(b[i:end]) == word {
		return end, nil
	}
	return 0, fail(i, "value expected")
}

// skipNumber follows the grammar of RFC 8259: no leading zero, no leading plus, digits on both sides of the point and
// in the exponent.
func skipNumber(b []byte, i int) (end int, err error) {
	start := i
	if b[i] == '-' {
		i++
	}
	digits := func() bool {
		from := i
		for i < len(b) && '0' <= b[i] && b[i] <= '9' {
			i++
		}
		return i > from
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case digits():
	case i > start:
		return 0, fail(i, "digit expected")
	default:
		return 0, fail(i, "value expected")
	}
	if i < len(b) && b[i] == '.' {
		if i++; !digits() {
			return 0, fail(i, "digit expected")
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return 0, fail(i, "digit expected")
		}
	}
	return i, nil
}

// skipString validates the string whose opening quote is at b[i] and returns the index behind its closing quote.
func skipString(b []byte, i int) (end int, err error) {
	i++
	start := i
	for {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return 0, fail(len(b), "string is not closed")
		}
		quote := i + n
		for i < quote {
			n := bytes.IndexByte(b[i:quote], '\\')
			if n < 0 {
				i = quote
			} else if i, err = skipEscape(b, i+n); err != nil {
				return 0, err
			}
		}
		if i == quote { // else it was escaped
			return quote + 1, checkText(b[start:quote], start)
		}
	}
}

// checkText refuses control characters, and what is not UTF-8, in a text that stands at an offset.
func checkText(text []byte, offset int) error {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	var control, wide uint64 // high bits of bytes below a blank, and of those outside ASCII
	rest := text
	for ; len(rest) >= 32; rest = rest[32:] {
		a, b := binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint64(rest[8:])
		c, d := binary.LittleEndian.Uint64(rest[16:]), binary.LittleEndian.Uint64(rest[24:])
		control |= (a-' '*ones)&^a | (b-' '*ones)&^b | (c-' '*ones)&^c | (d-' '*ones)&^d
		wide |= a | b | c | d
	}
	for _, c := range rest {
		control |= (uint64(c) - ' ') &^ uint64(c)
		wide |= uint64(c)
	}
	if control&highs != 0 {
		at := slices.IndexFunc(text, func(c byte) bool { return c < ' ' })
		return fail(offset+at, "control character in string")
	}
	if wide&highs == 0 || utf8.Valid(text) {
		return nil
	}
	for at := 0; ; {
		r, n := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && n < 2 {
			return fail(offset+at, "string is not UTF-8")
		}
		at += n
	}
}

// skipEscape validates the escape sequence at b[i] and returns the index behind it.
func skipEscape(b []byte, i int) (end int, err error) {
	if i+1 >= len(b) {
		return 0, fail(len(b), "string is not closed")
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, nil
	case 'u':
		digits := b[i+2 : min(i+6, len(b))]
		if _, err := strconv.ParseUint(string(digits), 16, 16); err != nil || len(digits) < 4 {
			return 0, fail(i, `\u needs four hexadecimal digits`)
		}
		return i + 6, nil
	}
	return 0, fail(i, "unknown escape in string")
}
