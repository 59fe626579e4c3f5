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

// readAnswer finds the embeddings of an engine's answer, as they are written, in the order of the inputs. The slices
// are parts of body. It fails unless each of the len(out) indexes is there exactly once.
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

// numbers returns a list that holds no other list, nil and unmoved where the next value is none.
func (s *scanner) numbers() []byte {
	n := bytes.IndexByte(s.b[s.i:], ']')
	if n < 0 || bytes.IndexByte(s.b[s.i+1:s.i+n], '[') >= 0 || bytes.IndexByte(s.b[s.i:s.i+n], '"') >= 0 {
		return nil
	}
	v := s.b[s.i : s.i+n+1]
	s.i += n + 1
	return v
}

// finite reports whether an embedding, a JSON list of numbers or base64 text, has only finite values. Engines write
// null, NaN or Infinity for others.
func finite(embedding []byte) bool {
	if len(embedding) == 0 {
		return false
	}
	if embedding[0] == '"' {
		raw, ok := fromBase64(embedding)
		if !ok {
			return false
		}
		for ; len(raw) >= 4; raw = raw[4:] {
			const exponent = 0x7f800000
			if binary.LittleEndian.Uint32(raw)&exponent == exponent {
				return false
			}
		}
		return len(raw) == 0
	}
	for _, c := range []byte("nNI") {
		if bytes.IndexByte(embedding, c) >= 0 {
			return false
		}
	}
	return embedding[0] == '['
}

func fromBase64(quoted []byte) (raw []byte, ok bool) {
	raw, err := base64.StdEncoding.AppendDecode(nil, bytes.Trim(quoted, `"`))
	return raw, err == nil
}

// appendBase64 writes an embedding that is a list of numbers in base64 form.
func appendBase64(dst, embedding []byte) ([]byte, error) {
	var values []float64
	if err := json.Unmarshal(embedding, &values); err != nil {
		return dst, errAnswer // a list of lists, for one, has no base64 form
	}
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(v)))
	}
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, raw)
	return append(dst, '"'), nil
}
