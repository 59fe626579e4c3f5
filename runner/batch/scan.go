package batch

import (
	"bytes"
	"errors"
)

var errSyntax = errors.New("not the JSON that was expected")

// scanner walks JSON text without decoding it. It checks structure as far as it walks and leaves the inside of values
// that it skips to whoever reads them.
type scanner struct {
	b []byte
	i int
}

// peek returns the next byte that is no space, 0 at the end.
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

// take moves past c, which must be next.
func (s *scanner) take(c byte) error {
	if s.peek() != c {
		return errSyntax
	}
	s.i++
	return nil
}

// more moves to the next element of an array or object: past a comma, or past the closing byte, which ends it. first
// says that nothing has been read yet.
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

// str returns the next string with its quotes, as it is written.
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

// key returns the next member's name without quotes and moves past its colon. Names with escapes are refused: they
// could hide a known one.
func (s *scanner) key() ([]byte, error) {
	k, err := s.str()
	if err != nil || bytes.ContainsFunc(k, func(r rune) bool { return r == '\\' || r < ' ' }) {
		return nil, errSyntax
	}
	return k[1 : len(k)-1], s.take(':')
}

// value returns the next value as it is written.
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

// end reports that nothing but spaces follows.
func (s *scanner) end() bool { return s.peek() == 0 && s.i == len(s.b) }
