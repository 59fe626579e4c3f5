package batch

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
)

var (
	errResponse = errors.New("the engine's response is not a list with one embedding for each input")
	errValues   = errors.New("the engine's response contains a value that is not a finite number")
)

// An embedding is one vector as an engine wrote it: a JSON string of base64, or a JSON list of numbers.
type embedding json.RawMessage

// readResponse returns the n embeddings of an engine's response in the order of the inputs. It fails unless each index
// occurs exactly once.
func readResponse(body []byte, n int) ([]embedding, error) {
	var answer struct {
		Data []struct {
			Index     *int            `json:"index"`
			Embedding json.RawMessage `json:"embedding"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.Data) != n {
		return nil, errResponse
	}
	out := make([]embedding, n)
	for _, d := range answer.Data {
		if d.Index == nil || *d.Index < 0 || *d.Index >= n || out[*d.Index] != nil || len(d.Embedding) == 0 {
			return nil, errResponse
		}
		out[*d.Index] = embedding(d.Embedding)
	}
	return out, nil
}

// values decodes an embedding. It fails if the embedding is empty or has a value that is not finite. Engines write null
// for such values; NaN and Infinity are not JSON, and readResponse refuses them.
func (e embedding) values() ([]float32, error) {
	var values []float32
	if e[0] != '"' {
		// encoding/json reads null as no change.
		if bytes.IndexByte(e, 'n') >= 0 || json.Unmarshal(e, &values) != nil || len(values) == 0 {
			return nil, errValues
		}
		return values, nil
	}
	raw, err := base64.StdEncoding.AppendDecode(make([]byte, 0, len(e)), e[1:len(e)-1])
	if err != nil || len(raw) == 0 || len(raw)%4 != 0 {
		return nil, errValues
	}
	values = make([]float32, len(raw)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		if v := float64(values[i]); math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, errValues
		}
	}
	return values, nil
}

// appendBase64 writes values as base64 text of little-endian float32.
func appendBase64(dst []byte, values []float32) []byte {
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, '"'), raw)
	return append(dst, '"')
}

// appendNumbers writes values as a list of numbers, each in the shortest form that reads back as the same float32.
func appendNumbers(dst []byte, values []float32) []byte {
	dst = append(dst, '[')
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendFloat(dst, float64(v), 'g', -1, 32)
	}
	return append(dst, ']')
}

// flushSize is how many bytes of a response are buffered before they are written.
const flushSize = 32 << 10

// writeResponse writes the body of the response to a request whose sequences have these token counts.
func (p *parsed) writeResponse(w io.Writer, counts []int, results [][]float32) error {
	total := 0
	b := append(make([]byte, 0, flushSize), `{"object":"list","data":[`...)
	for i, values := range results {
		total += counts[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"object":"embedding","index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"embedding":`...)
		if p.base64 {
			b = appendBase64(b, values)
		} else {
			b = appendNumbers(b, values)
		}
		if b = append(b, '}'); len(b) >= flushSize {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	b = append(b, ']')
	if p.model != nil {
		b = append(append(b, `,"model":`...), p.model...)
	}
	b = append(b, `,"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(total), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(total), 10)
	_, err := w.Write(append(b, "}}"...))
	return err
}
