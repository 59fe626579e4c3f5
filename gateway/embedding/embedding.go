// Package embedding reads what embedding requests in the formats of OpenAI, Voyage, Jina and Cohere say about the form
// of the embeddings, and gives engines' embeddings that form. It does no I/O.
package embedding

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
)

// ToOpenAI returns a request's body with OpenAI's names in place of Jina's, and Jina's truncate in place of Cohere's,
// of Voyage's truncation and of vLLM's truncate_prompt_tokens. It refuses what no engine does. Jina's task changes
// nothing.
func ToOpenAI(body []byte) ([]byte, error) {
	var v [7]jsonscan.Value
	names := []string{"embedding_type", "late_chunking", "return_multivector", "normalized", "truncation", "truncate_prompt_tokens", "truncate"}
	err := jsonscan.Scan(body, names, v[:])
	if err != nil {
		return nil, api.BadJSON(err)
	}
	if n, _ := v[5].Int(); v[5].Set() && n != -1 {
		return nil, api.New(api.UnsupportedParameter, "'truncate_prompt_tokens' can only be -1, the model's maximum.").WithParam("truncate_prompt_tokens")
	}
	truncate, err := ReadTruncate(v[6], false)
	if err != nil {
		return nil, err
	}
	if v[4].Set() || v[5].Set() || v[6].Kind == jsonscan.String {
		body, err = jsonscan.Remove(body, names[4:]...)
		if err == nil && (truncate || v[4].Bool() || v[5].Set()) {
			body, err = jsonscan.Set(body, "truncate", []byte("true"))
		}
		if err != nil {
			return nil, api.BadJSON(err)
		}
	}
	switch {
	case v[1].Bool():
		return nil, api.New(api.UnsupportedParameter, "Texts are embedded one by one; leave 'late_chunking' out.").WithParam("late_chunking")
	case v[2].Bool():
		return nil, api.New(api.UnsupportedParameter, "A text gets one embedding; leave 'return_multivector' out.").WithParam("return_multivector")
	case v[3].Kind == jsonscan.Bool && !v[3].Bool():
		return nil, api.New(api.UnsupportedParameter, "Embeddings are normalized; leave 'normalized' out.").WithParam("normalized")
	}
	if !v[0].Set() {
		return body, nil
	}
	kind := v[0].String()
	if v[0].Kind != jsonscan.String || kind != "float" && kind != "base64" {
		return nil, api.New(api.UnsupportedParameter, "'embedding_type' can only be float or base64.").WithParam("embedding_type")
	}
	if body, err = jsonscan.Remove(body, "embedding_type"); err == nil {
		body, err = jsonscan.SetString(body, "encoding_format", kind)
	}
	if err != nil {
		return nil, api.BadJSON(err)
	}
	return body, nil
}

// Format is how a client wants its embeddings.
type Format struct {
	Dimensions int  // 0: the model's own
	own        bool // they must be the model's own
	Inputs     int  // texts in the request
	Base64     bool // of little-endian float32, in place of a list of numbers
}

// ReadFormat reads the form from a request's body. If it has dimensions, the body that is returned asks the engine for
// neither them nor base64. Those of a model that does not allow dimensions must be its own.
func ReadFormat(body []byte, model *catalog.Model) (f Format, engine []byte, err error) {
	var v [5]jsonscan.Value
	if err := jsonscan.Scan(body, []string{"dimensions", "encoding_format", "output_dimension", "output_dtype", "input"}, v[:]); err != nil {
		return f, nil, api.BadJSON(err)
	}
	if f.Inputs = 1; v[4].Kind == jsonscan.Array && v[4].First() != jsonscan.Number { // a list of numbers is one text's tokens
		f.Inputs = v[4].Len()
	}
	if !v[0].Set() {
		v[0] = v[2] // Voyage's name
	}
	if v[3].Set() && v[3].String() != "float" {
		return f, nil, api.New(api.UnsupportedParameter, "'output_dtype' can only be float.").WithParam("output_dtype")
	}
	if s := v[1].String(); v[1].Set() && (v[1].Kind != jsonscan.String || s != "float" && s != "base64") {
		return f, nil, api.New(api.InvalidType, "'encoding_format' must be float or base64.").WithParam("encoding_format")
	}
	f.Base64 = v[1].String() == "base64"
	if !v[0].Set() {
		return f, body, nil
	}
	f.own = !model.Dimensions
	n, ok := v[0].Int()
	if f.Dimensions = int(n); !ok || f.Dimensions < 1 {
		return f, nil, api.New(api.InvalidType, "'dimensions' must be a whole number of at least 1.").WithParam("dimensions")
	}
	if body, err = jsonscan.Remove(body, "dimensions", "encoding_format", "output_dimension"); err != nil {
		return f, nil, api.BadJSON(err)
	}
	return f, body, nil
}

// Valid reports whether an engine's response has one embedding for each of the inputs: lists of numbers of the same length, or
// texts in base64.
func Valid(response []byte, inputs int) bool {
	var data [1]jsonscan.Value
	if jsonscan.Scan(response, []string{"data"}, data[:]) != nil || data[0].Kind != jsonscan.Array {
		return false
	}
	seen, commas := make([]bool, inputs), -1
	for m := jsonscan.MembersOf(data[0]); m.Next(); inputs-- {
		var v [2]jsonscan.Value
		if jsonscan.Scan(m.Value().Raw, []string{"embedding", "index"}, v[:]) != nil || inputs == 0 {
			return false
		}
		if i, ok := v[1].Int(); v[1].Set() && ok {
			if i < 0 || int(i) >= len(seen) || seen[i] {
				return false
			}
			seen[i] = true
		}
		switch raw := v[0].Raw; v[0].Kind {
		case jsonscan.String:
			if len(raw) == len(`""`) {
				return false
			}
		case jsonscan.Array:
			n := bytes.Count(raw, []byte(","))
			if commas >= 0 && n != commas || v[0].First() != jsonscan.Number || bytes.ContainsAny(raw[1:], `n"[{tf`) {
				return false // a null is what some engines write for NaN
			}
			commas = n
		default:
			return false
		}
	}
	return inputs == 0
}

// Truncate returns an engine's response with the embeddings cut to the form's dimensions and normalized. Without
// dimensions it returns the response unchanged.
func (f Format) Truncate(body []byte) ([]byte, error) {
	if f.Dimensions == 0 {
		return body, nil
	}
	var doc map[string]json.RawMessage
	var data []struct {
		Object    string    `json:"object"`
		Index     int       `json:"index"`
		Embedding []float32 `json:"embedding"`
	}
	if json.Unmarshal(body, &doc) != nil || json.Unmarshal(doc["data"], &data) != nil {
		return nil, api.InvalidEngineResponse()
	}
	out := make([]map[string]any, len(data))
	for i, d := range data {
		if f.own && f.Dimensions != len(d.Embedding) {
			return nil, api.Newf(api.UnsupportedParameter, "This model gives embeddings of length %d only; leave 'dimensions' out.", len(d.Embedding)).WithParam("dimensions")
		}
		if f.Dimensions > len(d.Embedding) {
			return nil, api.Newf(api.InvalidType, "'dimensions' is %d, but the model gives %d.", f.Dimensions, len(d.Embedding)).WithParam("dimensions")
		}
		vector := d.Embedding
		if f.Dimensions < len(vector) {
			vector = truncateVector(vector, f.Dimensions)
		}
		var e any = vector
		if f.Base64 {
			e = encodeBase64(vector)
		}
		out[i] = map[string]any{"object": "embedding", "index": d.Index, "embedding": e}
	}
	list, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	doc["data"] = list
	return json.Marshal(doc)
}

// truncateVector returns the first n values, scaled to length 1.
func truncateVector(v []float32, n int) []float32 {
	var sum float64
	for _, f := range v[:n] {
		sum += float64(f) * float64(f)
	}
	out := make([]float32, n)
	if sum == 0 {
		return out
	}
	scale := 1 / math.Sqrt(sum)
	for i, f := range v[:n] {
		out[i] = float32(float64(f) * scale)
	}
	return out
}

// encodeBase64 returns v as base64 of little-endian float32.
func encodeBase64(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return base64.StdEncoding.EncodeToString(b)
}
