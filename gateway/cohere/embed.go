// Package cohere translates between Cohere's embeddings (/v2/embed) and OpenAI's, which is what engines speak. It does no I/O.
package cohere

import (
	"bytes"
	"encoding/json"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/gateway/embedding"
	"reveille/infra/jsonscan"
)

// EmbedRequest is what the gateway handles of a request to /v2/embed.
type EmbedRequest struct {
	Texts      json.RawMessage
	Dimensions json.RawMessage // nil: the model's own

	kinds []string // float, base64 or both
}

// ReadEmbed reads a request whose body the route has checked. Its errors are [api.Error].
func ReadEmbed(body []byte) (*EmbedRequest, error) {
	var v [3]jsonscan.Value
	if err := jsonscan.Scan(body, []string{"texts", "output_dimension", "embedding_types"}, v[:]); err != nil {
		return nil, api.BadJSON(err)
	}
	q := EmbedRequest{Texts: bytes.Clone(v[0].Raw), Dimensions: v[1].Raw, kinds: []string{"float"}}
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

// Answer returns Cohere's answer of the embeddings, in the order of the texts. id is the request's. Its error is
// [completion.ErrAnswer].
func (q *EmbedRequest) Answer(id string, vectors []json.RawMessage, tokens int64) (Embeddings, error) {
	out := Embeddings{ID: id, Embeddings: map[string]any{}, Texts: q.Texts}
	for _, kind := range q.kinds {
		if kind == "float" {
			out.Embeddings[kind] = vectors
			continue
		}
		packed := make([]string, len(vectors))
		for i, raw := range vectors {
			var vector []float32
			if json.Unmarshal(raw, &vector) != nil {
				return out, completion.ErrAnswer
			}
			packed[i] = embedding.Base64(vector)
		}
		out.Embeddings[kind] = packed
	}
	out.Meta.APIVersion.Version, out.Meta.Billed.Input = "2", tokens
	return out, nil
}

// Embeddings is the answer to an EmbedRequest.
type Embeddings struct {
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
