package httpapi

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
)

var embeddingsPath = []byte("/v1/embeddings")

// embeddings relays embedding requests. For models that allow dimensions, the gateway cuts and normalises the vectors
// itself; other models' requests with dimensions are refused.
func (s *Server) embeddings(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	if err := c.jina(); err != nil {
		return err
	}
	n, b64, err := c.dimensions()
	if err != nil {
		return err
	}
	x := &exchange{call: c, path: embeddingsPath}
	if n > 0 {
		x.answer = func(x *exchange, resp *relay.Response) error { return x.sendCut(resp, n, b64) }
	}
	return x.start()
}

// jina turns Jina's names into OpenAI's and refuses what no engine does. Its task and truncate change nothing.
func (c *call) jina() error {
	var v [4]jsonscan.Value
	if err := jsonscan.Scan(c.body, []string{"embedding_type", "late_chunking", "return_multivector", "normalized"}, v[:]); err != nil {
		return api.BadJSON(err)
	}
	switch {
	case v[1].Bool():
		return api.New(api.UnsupportedParameter, "Texts are embedded one by one; leave 'late_chunking' out.").With("late_chunking")
	case v[2].Bool():
		return api.New(api.UnsupportedParameter, "A text gets one embedding; leave 'return_multivector' out.").With("return_multivector")
	case v[3].Kind == jsonscan.Bool && !v[3].Bool():
		return api.New(api.UnsupportedParameter, "Embeddings are normalized; leave 'normalized' out.").With("normalized")
	}
	if !v[0].Set() {
		return nil
	}
	kind := v[0].String()
	if v[0].Kind != jsonscan.String || kind != "float" && kind != "base64" {
		return api.New(api.UnsupportedParameter, "'embedding_type' can only be float or base64.").With("embedding_type")
	}
	body, err := jsonscan.Remove(c.body, "embedding_type")
	if err == nil {
		c.body, err = jsonscan.SetString(body, "encoding_format", kind)
	}
	if err != nil {
		return api.BadJSON(err)
	}
	return nil
}

// dimensions returns the length that a request asks for, 0 for the model's own, and whether it wants base64. With a
// length it asks the engine for neither.
func (c *call) dimensions() (n int, b64 bool, err error) {
	var v [4]jsonscan.Value
	if err := jsonscan.Scan(c.body, []string{"dimensions", "encoding_format", "output_dimension", "output_dtype"}, v[:]); err != nil {
		return 0, false, api.BadJSON(err)
	}
	if !v[0].Set() {
		v[0] = v[2] // Voyage's name
	}
	if v[3].Set() && v[3].String() != "float" {
		return 0, false, api.New(api.UnsupportedParameter, "'output_dtype' can only be float.").With("output_dtype")
	}
	if e := encodingFormat(v[1]); e != nil {
		return 0, false, e
	}
	b64 = v[1].String() == "base64"
	if !v[0].Set() {
		return 0, b64, nil
	}
	if !c.model.Dimensions {
		return 0, false, api.Newf(api.UnsupportedParameter, "The model '%s' gives embeddings of its own length only; leave 'dimensions' out.", c.model.ID).With("dimensions")
	}
	if v[0].Kind != jsonscan.Number || json.Unmarshal(v[0].Raw, &n) != nil || n < 1 {
		return 0, false, api.New(api.InvalidType, "'dimensions' must be a whole number of at least 1.").With("dimensions")
	}
	for _, key := range []string{"dimensions", "encoding_format", "output_dimension"} {
		if c.body, err = jsonscan.Remove(c.body, key); err != nil {
			return 0, false, api.BadJSON(err)
		}
	}
	return n, b64, nil
}

func encodingFormat(v jsonscan.Value) *api.Error {
	if !v.Set() {
		return nil
	}
	if s := v.String(); v.Kind != jsonscan.String || s != "float" && s != "base64" {
		return api.New(api.InvalidType, "'encoding_format' must be float or base64.").With("encoding_format")
	}
	return nil
}

// sendCut answers with embeddings cut to n dimensions and normalised.
func (x *exchange) sendCut(resp *relay.Response, n int, b64 bool) error {
	raw, err := resp.AppendBody(nil, maxBuffered)
	if err != nil {
		return err
	}
	doc, err := cutAnswer(raw, n, b64)
	if err != nil {
		return err
	}
	return x.sendJSON(doc, raw)
}

// cutTo cuts the embeddings of an answer to n dimensions; 0 keeps all.
func cutTo(raw []byte, n int) ([]byte, error) {
	if n == 0 {
		return raw, nil
	}
	doc, err := cutAnswer(raw, n, false)
	if err != nil {
		return nil, err
	}
	return json.Marshal(doc)
}

// cutAnswer cuts the embeddings of an answer to n dimensions and normalises them.
func cutAnswer(raw []byte, n int, b64 bool) (doc map[string]json.RawMessage, err error) {
	var data []struct {
		Object    string    `json:"object"`
		Index     int       `json:"index"`
		Embedding []float32 `json:"embedding"`
	}
	if json.Unmarshal(raw, &doc) != nil || json.Unmarshal(doc["data"], &data) != nil {
		return nil, api.NotUnderstood()
	}
	out := make([]map[string]any, len(data))
	for i, d := range data {
		if n > len(d.Embedding) {
			return nil, api.Newf(api.InvalidType, "'dimensions' is %d, but the model gives %d.", n, len(d.Embedding)).With("dimensions")
		}
		var e any = cut(d.Embedding, n)
		if b64 {
			e = floats64(cut(d.Embedding, n))
		}
		out[i] = map[string]any{"object": "embedding", "index": d.Index, "embedding": e}
	}
	doc["data"], err = json.Marshal(out)
	return doc, err
}

// cut returns the first n values, scaled to length 1.
func cut(v []float32, n int) []float32 {
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

// floats64 returns v as base64 of little-endian float32.
func floats64(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return base64.StdEncoding.EncodeToString(b)
}
