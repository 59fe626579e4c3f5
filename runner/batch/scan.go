package batch

import (
	"bytes"
	"errors"
	"strconv"
)

var errSyntax = errors.New("unexpected JSON")

// scanner walks JSON text without decoding it. It checks the structure as far as it walks; whoever reads a skipped
// value checks its inside.
type scanner struct {
	b []byte
	i int
}

// peek returns the next byte that is not white space, or 0 at the end.
func (s *scanner) peek() byte {
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// take moves past c, which must be the next byte.
func (s *scanner) take(c byte) error {
	if s.peek() != c {
		return errSyntax
	}
	s.i++
	return nil
}

// more moves to the next element of an array or object: past a comma, or past the closing byte. It returns false at the
// closing byte. first says that nothing has been read yet.
func (s *scanner) more(first bool, closing byte) (bool, error) {
	switch c := s.peek(); {
	case c == closing:
		s.i++
		return false, nil
	case first:
		return true, nil
	case c == ',':
		s.i++
		if s.peek() == closing {
			return false, errSyntax
		}
		return true, nil
	}
	return false, errSyntax
}

// str returns the next string unparsed, with its quotes.
func (s *scanner) str() ([]byte, error) {
	if s.peek() != '"' {
		return nil, errSyntax
	}
	start := s.i
	for i := start + 1; ; {
		n := bytes.IndexByte(s.b[i:], '"')
		if n < 0 {
			return nil, errSyntax
		}
		end := i + n
		slashes := 0
		for s.b[end-1-slashes] == '\\' { // stops at the opening quote at the latest
			slashes++
		}
		if i = end + 1; slashes%2 == 0 {
			s.i = i
			return s.b[start:i], nil
		}
	}
}

// key returns the next member's name without quotes and moves past its colon. It refuses names with escapes, which
// could hide a known one.
func (s *scanner) key() ([]byte, error) {
	k, err := s.str()
	if err != nil || bytes.ContainsFunc(k, func(r rune) bool { return r == '\\' || r < ' ' }) {
		return nil, errSyntax
	}
	return k[1 : len(k)-1], s.take(':')
}

// value returns the next value unparsed.
func (s *scanner) value() ([]byte, error) {
	c := s.peek()
	start := s.i
	switch c {
	case 0, ',', ']', '}', ':':
		return nil, errSyntax
	case '"':
		return s.str()
	case '[', '{':
		depth := 0
		for s.i < len(s.b) {
			switch s.b[s.i] {
			case '"':
				if _, err := s.str(); err != nil {
					return nil, err
				}
				continue
			case '[', '{':
				depth++
			case ']', '}':
				depth--
			}
			s.i++
			if depth == 0 {
				return s.b[start:s.i], nil
			}
		}
		return nil, errSyntax
	}
	for s.i < len(s.b) && bytes.IndexByte([]byte(",]} \t\r\n"), s.b[s.i]) < 0 {
		s.i++
	}
	return s.b[start:s.i], nil
}

// skip moves past c if it is next, and reports whether it was.
func (s *scanner) skip(c byte) bool {
	if s.i == len(s.b) || s.b[s.i] != c {
		return false
	}
	s.i++
	return true
}

// digits moves past digits and reports whether there were any.
func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > start
}

// integer moves past a whole number without a sign.
func (s *scanner) integer() bool {
	start := s.i
	return s.digits() && (s.b[start] != '0' || s.i == start+1)
}

// number moves past a number and reports whether it was one that fits in a float32.
func (s *scanner) number() bool {
	const small = 38 // bytes; a shorter number is below 10^38, which fits in a float32
	start := s.i
	s.skip('-')
	if !s.integer() || s.skip('.') && !s.digits() {
		return false
	}
	if !s.skip('e') && !s.skip('E') {
		if s.i-start <= small {
			return true
		}
	} else {
		if !s.skip('-') {
			s.skip('+')
		}
		if !s.digits() {
			return false
		}
	}
	_, err := strconv.ParseFloat(string(s.b[start:s.i]), 32)
	return err == nil
}

// end reports whether only white space follows.
func (s *scanner) end() bool { return s.peek() == 0 && s.i == len(s.b) }
