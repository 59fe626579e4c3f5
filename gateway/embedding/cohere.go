package embedding

import (
	"bytes"
	"encoding/json"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/infra/jsonscan"
)

// CohereRequest is what the gateway handles of a request to /v2/embed.
type CohereRequest struct {
	Texts      json.RawMessage
	Dimensions json.RawMessage // nil: the model's own
	Truncate   bool            // a text that is too long is cut at its end

	kinds []string // float, base64 or both
}

// ReadCohere reads a request whose body the route has checked. Its errors are [api.Error].
func ReadCohere(body []byte) (*CohereRequest, error) {
	var v [4]jsonscan.Value
	if err := jsonscan.Scan(body, []string{"texts", "output_dimension", "embedding_types", "truncate"}, v[:]); err != nil {
		return nil, api.BadJSON(err)
	}
	truncate, err := ReadTruncate(v[3], true)
	if err != nil {
		return nil, err
	}
	q := CohereRequest{Texts: bytes.Clone(v[0].Raw), Dimensions: v[1].Raw, Truncate: truncate, kinds: []string{"float"}}
	if v[2].Set() && (v[2].Len() > 2 || json.Unmarshal(v[2].Raw, &q.kinds) != nil || len(q.kinds) == 0) {
		return nil, api.New(api.InvalidType, "'embedding_types' must be a list of one or two texts.").WithParam("embedding_types")
	}
	for _, kind := range q.kinds {
		if kind != "float" && kind != "base64" {
			return nil, api.New(api.UnsupportedParameter, "'embedding_types' can only be float and base64.").WithParam("embedding_types")
		}
	}
	return &q, nil
}

// ReadTruncate reads whether texts that are too long are cut at their end. Its error is [api.Error].
func ReadTruncate(v jsonscan.Value, absent bool) (bool, error) {
	switch text := v.String(); {
	case v.Empty():
		return absent, nil
	case v.Kind == jsonscan.Bool:
		return v.Bool(), nil
	case text == "END" || text == "NONE":
		return text == "END", nil
	}
	return false, api.New(api.UnsupportedParameter, "'truncate' can only be END or true, NONE or false.").WithParam("truncate")
}

// Response returns Cohere's response of the embeddings, in the order of the texts. id is the request's. Its error is
// [completion.ErrInvalidResponse].
func (q *CohereRequest) Response(id string, vectors []json.RawMessage, tokens int64) (CohereResponse, error) {
	out := CohereResponse{ID: id, Embeddings: map[string]any{}, Texts: q.Texts}
	for _, kind := range q.kinds {
		if kind == "float" {
			out.Embeddings[kind] = vectors
			continue
		}
		packed := make([]string, len(vectors))
		for i, raw := range vectors {
			var vector []float32
			if json.Unmarshal(raw, &vector) != nil {
				return out, completion.ErrInvalidResponse
			}
			packed[i] = encodeBase64(vector)
		}
		out.Embeddings[kind] = packed
	}
	out.Meta.APIVersion.Version, out.Meta.Billed.Input = "2", tokens
	return out, nil
}

// CohereResponse is the response to a CohereRequest.
type CohereResponse struct {
	ID         string          `json:"id"`
	Embeddings map[string]any  `json:"embeddings"` // by type
	Texts      json.RawMessage `json:"texts"`
	Meta       struct {
		APIVersion struct {
			Version string `json:"version"`
		} `json:"api_version"`
		Billed struct {
			Input int64 `json:"input_tokens"`
		} `json:"billed_units"`
	} `json:"meta"`
}
