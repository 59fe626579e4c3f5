package jsonscan

import (
	"math"
	"strconv"
)

// skipValue validates the value that begins at b[i], inside one open
// container, and returns the index behind it and what was seen of it when it
// is a container.
func skipValue(b []byte, i int) (end int, in inside, err error) {
	if b[i] != '{' && b[i] != '[' {
		end, err = skipScalar(b, i)
		return end, inside{}, err
	}
	return skipContainer(b, i)
}

// inside is what is known about a container without reading it again.
type inside struct {
	items   int  // of its own
	depth   int  // levels of containers, itself included
	objects bool // one of them is an object
}

// nesting remembers for each open container whether it is an object.
type nesting [(maxDepth + 63) / 64]uint64

func (n *nesting) push(depth int, object bool) {
	bit := uint64(1) << (depth & 63)
	if object {
		n[depth>>6] |= bit
	} else {
		n[depth>>6] &^= bit
	}
}

func (n *nesting) object(depth int) bool { return n[depth>>6]>>(depth&63)&1 != 0 }

// skipContainer validates the object or array that begins at b[i], inside one open container. It keeps
// its own stack, so hostile nesting costs no goroutine stack.
func skipContainer(b []byte, i int) (end int, in inside, err error) {
	var open nesting
	depth := 0 // containers open inside the value, this one included
	for {
		// At the start of a value.
		if i == len(b) {
			return 0, in, fail(i, "value expected")
		}
		c := b[i]
		if c == '{' || c == '[' {
			if 1+depth == maxDepth {
				return 0, in, fail(i, "nesting too deep")
			}
			open.push(depth, c == '{')
			depth++
			in.depth = max(in.depth, depth)
			in.objects = in.objects || c == '{'
			i = skipSpace(b, i+1)
			if i == len(b) {
				return 0, in, fail(i, "container is not closed")
			}
			if b[i] != c+2 { // '}' and ']' both lie two above their opening byte
				if depth == 1 {
					in.items = 1
				}
				if c == '{' {
					if i, err = skipName(b, i); err != nil {
						return 0, in, err
					}
				}
				continue
			}
			i++
			depth--
		} else if i, err = skipScalar(b, i); err != nil {
			return 0, in, err
		}

		// Behind a value: close containers until one goes on.
		for {
			if depth == 0 {
				return i, in, nil
			}
			i = skipSpace(b, i)
			if i == len(b) {
				return 0, in, fail(i, "container is not closed")
			}
			object := open.object(depth - 1)
			c := b[i]
			if c == ',' {
				if depth == 1 {
					in.items++
				}
				i = skipSpace(b, i+1)
				if object {
					if i, err = skipName(b, i); err != nil {
						return 0, in, err
					}
				}
				break
			}
			if object && c != '}' || !object && c != ']' {
				return 0, in, fail(i, "comma or closing bracket expected")
			}
			i++
			depth--
		}
	}
}

// skipName validates a member name and its colon and returns the index of the
// member's value.
func skipName(b []byte, i int) (value int, err error) {
	if i == len(b) || b[i] != '"' {
		return 0, fail(i, "member name expected")
	}
	if i, err = skipString(b, i); err != nil {
		return 0, err
	}
	i = skipSpace(b, i)
	if i == len(b) || b[i] != ':' {
		return 0, fail(i, "colon expected")
	}
	return skipSpace(b, i+1), nil
}

// skipScalar validates the string, number or literal at b[i] and returns the
// index behind it.
func skipScalar(b []byte, i int) (end int, err error) {
	switch b[i] {
	case '"':
		return skipString(b, i)
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	}
	return skipNumber(b, i)
}

func skipWord(b []byte, i int, word string) (end int, err error) {
	if end = i + len(word); end <= len(b) && string(b[i:end]) == word {
		return end, nil
	}
	return 0, fail(i, "value expected")
}

// skipNumber follows the grammar of RFC 8259: no leading zero, no leading
// plus, digits on both sides of the point and in the exponent. A number beyond
// the range of a double is refused.
func skipNumber(b []byte, i int) (end int, err error) {
	start := i
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && '1' <= b[i] && b[i] <= '9':
		i = skipDigits(b, i)
	case i > start:
		return 0, fail(i, "digit expected")
	default:
		return 0, fail(i, "value expected")
	}
	if i < len(b) && b[i] == '.' {
		point := i + 1
		if i = skipDigits(b, point); i == point {
			return 0, fail(i, "digit expected")
		}
	}
	large := i-start > shortNumber
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		exponent := i
		if i = skipDigits(b, exponent); i == exponent {
			return 0, fail(i, "digit expected")
		}
		large = large || i-exponent > 2
	}
	if large {
		if f, err := strconv.ParseFloat(string(b[start:i]), 64); err != nil && math.IsInf(f, 0) {
			return 0, fail(start, "number is out of range")
		}
	}
	return i, nil
}

// shortNumber is a length up to which a number's digits, even with an exponent
// of two digits, stay within the range of a double.
const shortNumber = 200

func skipDigits(b []byte, i int) int {
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i
}
