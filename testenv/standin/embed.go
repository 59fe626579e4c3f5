package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"time"
)

// dimensions of an embedding.
const dimensions = 32

// embed is POST /v1/embeddings.
func (c *call) embed() {
	var q struct {
		Input    json.RawMessage `json:"input"`
		Encoding string          `json:"encoding_format"`
	}
	if !c.decode(&q) {
		return
	}
	if q.Encoding != "" && q.Encoding != "float" && q.Encoding != "base64" {
		c.fail(http.StatusBadRequest, "invalid_request_error", "encoding_format must be float or base64")
		return
	}
	inputs, err := embedInputs(q.Input)
	if err != nil {
		c.fail(http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	tokens := 0
	for _, text := range inputs {
		tokens += countTokens(text)
	}
	c.s.stats.batch(len(inputs))
	if !c.admit(tokens) || !c.payBatch(len(inputs)) {
		return
	}
	data := make([]any, len(inputs))
	for i, text := range inputs {
		vec := vector(text)
		var form any = vec
		if q.Encoding == "base64" {
			form = packFloats(vec)
		}
		data[i] = map[string]any{"object": "embedding", "index": i, "embedding": form}
	}
	c.reply(map[string]any{
		"object": "list", "model": c.s.cfg.Alias, "data": data,
		"usage": map[string]any{"prompt_tokens": tokens, "total_tokens": tokens},
	})
}

// payBatch takes the time of one call of n inputs. Calls queue for the one device, in
// the order they came; false means the client has left.
func (c *call) payBatch(n int) bool {
	cost := c.s.cfg.CallCost + time.Duration(n)*c.s.cfg.InputCost
	if cost == 0 {
		return true
	}
	select {
	case c.s.gpu <- struct{}{}:
		defer func() { <-c.s.gpu }()
		return sleepPrecisely(c.r.Context(), cost)
	case <-c.r.Context().Done():
		return false
	}
}

var errInput = errors.New("input must be a string, a list of tokens, or a list of those that is not empty")

// embedInputs reads every form of input the API knows: a text, a list of texts, a list
// of tokens, a list of lists of tokens, or a mixed list. Tokens become their text.
func embedInputs(raw json.RawMessage) ([]string, error) {
	if text, ok := oneInput(raw); ok {
		return []string{text}, nil
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil || len(items) == 0 {
		return nil, errInput
	}
	inputs := make([]string, len(items))
	for i, item := range items {
		text, ok := oneInput(item)
		if !ok {
			return nil, errInput
		}
		inputs[i] = text
	}
	return inputs, nil
}

// oneInput reads a text or a list of at least one token.
func oneInput(raw json.RawMessage) (string, bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", false
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var tokens []*int
	if json.Unmarshal(raw, &tokens) != nil || len(tokens) == 0 {
		return "", false
	}
	ids := make([]int, len(tokens))
	for i, t := range tokens {
		if t == nil {
			return "", false
		}
		ids[i] = *t
	}
	return detokenize(ids), true
}

// vector is a unit vector that depends on the text alone; those of different texts are
// nearly orthogonal.
func vector(text string) []float32 {
	r := source(text)
	vec := make([]float64, dimensions)
	sum := 0.0
	for i := range vec {
		vec[i] = r.NormFloat64()
		sum += vec[i] * vec[i]
	}
	out := make([]float32, dimensions)
	for i, x := range vec {
		out[i] = float32(x / math.Sqrt(sum))
	}
	return out
}

// packFloats is the base64 form of an embedding: little-endian float32.
func packFloats(vec []float32) string {
	b := make([]byte, 0, 4*len(vec))
	for _, x := range vec {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}
