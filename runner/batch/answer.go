package batch

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"strconv"
)

var (
	errAnswer = errors.New("the engine's answer is not a list of as many embeddings as it was given inputs")
	errValues = errors.New("the engine's answer holds a value that is not a finite number")
)

// readAnswer finds the embeddings in an engine's answer, unparsed and in the order of the inputs. The slices are parts
// of body. It fails unless each of the len(out) indexes occurs exactly once.
func readAnswer(body []byte, out [][]byte) error {
	clear(out)
	s := scanner{b: body}
	if s.take('{') != nil {
		return errAnswer
	}
	found := 0
	for first := true; ; first = false {
		more, err := s.more(first, '}')
		if err != nil {
			return errAnswer
		}
		if !more {
			break
		}
		key, err := s.key()
		if err != nil {
			return errAnswer
		}
		if string(key) != "data" {
			if _, err := s.value(); err != nil {
				return errAnswer
			}
			continue
		}
		if found, err = readData(&s, out); err != nil {
			return err
		}
	}
	if found != len(out) || !s.end() {
		return errAnswer
	}
	return nil
}

func readData(s *scanner, out [][]byte) (found int, err error) {
	if s.take('[') != nil {
		return 0, errAnswer
	}
	for first := true; ; first = false {
		more, err := s.more(first, ']')
		if err != nil {
			return 0, errAnswer
		}
		if !more {
			return found, nil
		}
		index, embedding, err := readItem(s)
		if err != nil || index < 0 || index >= len(out) || out[index] != nil {
			return 0, errAnswer
		}
		out[index] = embedding
		found++
	}
}

func readItem(s *scanner) (index int, embedding []byte, err error) {
	index = -1
	if err := s.take('{'); err != nil {
		return 0, nil, err
	}
	for first := true; ; first = false {
		more, err := s.more(first, '}')
		if err != nil || !more {
			if embedding == nil {
				err = errAnswer
			}
			return index, embedding, err
		}
		key, err := s.key()
		if err != nil {
			return 0, nil, err
		}
		var value []byte
		if s.peek() == '[' {
			value = s.numbers()
		}
		if value == nil {
			if value, err = s.value(); err != nil {
				return 0, nil, err
			}
		}
		switch string(key) {
		case "index":
			if index, err = strconv.Atoi(string(value)); err != nil {
				return 0, nil, err
			}
		case "embedding":
			embedding = value
		}
	}
}

// numbers returns a list that contains no other list. If the next value is not one, it returns nil and does not move.
func (s *scanner) numbers() []byte {
	n := bytes.IndexByte(s.b[s.i:], ']')
	if n < 0 || bytes.IndexByte(s.b[s.i+1:s.i+n], '[') >= 0 || bytes.IndexByte(s.b[s.i:s.i+n], '"') >= 0 {
		return nil
	}
	v := s.b[s.i : s.i+n+1]
	s.i += n + 1
	return v
}

// unusable reports whether an embedding, a JSON list of numbers or base64 text, is empty or has a value that is not
// finite. Engines write null, NaN or Infinity for such values. scratch is reusable memory, which is returned.
func unusable(scratch, embedding []byte) ([]byte, bool) {
	if embedding[0] != '"' {
		return scratch, !finite(embedding)
	}
	scratch, err := appendRaw(scratch[:0], embedding)
	if err != nil || len(scratch) == 0 || len(scratch)%4 != 0 {
		return scratch, true
	}
	for raw := scratch; len(raw) > 0; raw = raw[4:] {
		const exponent = 0x7f800000
		if binary.LittleEndian.Uint32(raw)&exponent == exponent {
			return scratch, true
		}
	}
	return scratch, false
}

// finite reports whether a JSON value is a list of at least one number, each of which fits in a float32.
func finite(list []byte) bool {
	s := scanner{b: list}
	if s.take('[') != nil {
		return false
	}
	for first := true; ; first = false {
		more, err := s.more(first, ']')
		if err != nil || !more {
			return err == nil && !first
		}
		if !s.number() {
			return false
		}
	}
}

// appendRaw decodes quoted base64 text.
func appendRaw(dst, quoted []byte) ([]byte, error) {
	return base64.StdEncoding.AppendDecode(dst, quoted[1:len(quoted)-1])
}

// appendBase64 writes an embedding, given as a list of finite numbers, as base64 of little-endian float32 values.
func appendBase64(dst, embedding []byte) []byte {
	var values []float32
	_ = json.Unmarshal(embedding, &values) // cannot fail for a finite list
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, raw)
	return append(dst, '"')
}

// appendNumbers writes little-endian float32 values as a list of numbers, each in the shortest form that reads back as
// the same float32.
func appendNumbers(dst, raw []byte) []byte {
	dst = append(dst, '[')
	for i := 0; i+4 <= len(raw); i += 4 {
		if i > 0 {
			dst = append(dst, ',')
		}
		v := math.Float32frombits(binary.LittleEndian.Uint32(raw[i:]))
		dst = strconv.AppendFloat(dst, float64(v), 'g', -1, 32)
	}
	return append(dst, ']')
}
