package httpapi

import (
	"encoding/json"

	"reveille/gateway/api"
	"reveille/gateway/bodycheck"
	"reveille/gateway/completion"
	"reveille/gateway/embedding"
	"reveille/infra/config"
	"reveille/infra/jsonscan"
	"reveille/infra/policy"
)

// embeddingRequest is an embedding request of another dialect, as the engine receives it.
type embeddingRequest struct {
	Model      string          `json:"model"`
	Input      json.RawMessage `json:"input"`
	Dimensions json.RawMessage `json:"dimensions,omitempty"`
	Truncate   bool            `json:"truncate,omitempty"` // texts that are too long are cut at their end
}

// embedAs serves an embedding request of another dialect. encode turns the embeddings, in the order of the texts, into
// its response.
func (c *inferenceCall) embedAs(q embeddingRequest, encode func(vectors []json.RawMessage, tokens int64) (any, error)) (err error) {
	q.Model = c.model.ID
	if c.body, err = jsonscan.Marshal(q); err != nil {
		return err
	}
	x := &exchange{call: c}
	return x.serveEmbeddings(func(raw []byte) ([]byte, error) {
		vectors, tokens, err := completion.Vectors(raw)
		if err != nil {
			return nil, err
		}
		out, err := encode(vectors, tokens)
		if err != nil {
			return nil, err
		}
		return jsonscan.Marshal(out)
	})
}

// serveEmbeddings serves an embedding request of another dialect, whose body is in the engine's. encode turns the
// engine's response into the client's.
func (x *exchange) serveEmbeddings(encode func(raw []byte) ([]byte, error)) error {
	if err := x.call.checkBody(bodycheck.Embeddings); err != nil {
		return err
	}
	form, body, err := embedding.ReadFormat(x.call.body, x.call.model)
	if err != nil {
		return err
	}
	x.call.body = body
	x.path, x.embeddingCount = embeddingsPath, form.Inputs
	x.translate = func(raw []byte) ([]byte, error) {
		if raw, err = form.Truncate(raw); err != nil {
			return nil, err
		}
		return encode(raw)
	}
	return x.serveInference()
}

// teiEmbed serves /embed of Text Embeddings Inference.
func (s *Server) teiEmbed(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	var v [5]jsonscan.Value
	if err := jsonscan.Scan(c.body, []string{"inputs", "dimensions", "normalize", "truncate", "truncation_direction"}, v[:]); err != nil {
		return api.BadJSON(err)
	}
	if v[2].Set() && !v[2].Bool() {
		return api.New(api.UnsupportedParameter, "'normalize' can only be true here.").WithParam("normalize")
	}
	if v[3].Bool() && v[4].String() == "Left" {
		return api.New(api.UnsupportedParameter, "'truncation_direction' can only be Right here.").WithParam("truncation_direction")
	}
	return c.embedAs(embeddingRequest{Input: v[0].Raw, Dimensions: v[1].Raw, Truncate: v[3].Bool()}, func(vectors []json.RawMessage, _ int64) (any, error) { return vectors, nil })
}

// teiInfo serves /info of Text Embeddings Inference, for the model that the query names or the default one.
func (s *Server) teiInfo(r *request) error {
	cat := s.cfg.Catalog()
	route := api.Route{Type: policy.Embedding}
	if _, ok := cat.Default(policy.Embedding); !ok {
		route.Type = policy.Reranking
	}
	m, err := s.registry.Resolve(&r.Key, r.Query("model"), &route)
	if err != nil {
		return err
	}
	kind := "embedding"
	switch m.Type {
	case policy.Embedding:
	case policy.Reranking:
		kind = "reranker"
	default:
		return api.Newf(api.ModelTypeMismatch, "The model '%s' is of type %s; this route needs one of type embedding or reranking.", m.ID, m.Type).WithParam("model")
	}
	maxTokens, _ := s.registry.ContextOf(m, s.registry.WeightsOf(cat, m), s.registry.Effective(cat, m))
	info := map[string]any{
		"model_id": m.ID, "model_type": map[string]any{kind: map[string]any{}}, "max_client_batch_size": api.MaxInputs, "auto_truncate": false, "version": config.Version(),
	}
	if maxTokens > 0 {
		info["max_input_length"] = maxTokens
	}
	return r.Reply(200, info)
}

// cohereEmbed serves /v2/embed of Cohere.
func (s *Server) cohereEmbed(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	q, err := embedding.ReadCohere(c.body)
	if err != nil {
		return err
	}
	return c.embedAs(embeddingRequest{Input: q.Texts, Dimensions: q.Dimensions, Truncate: q.Truncate}, func(vectors []json.RawMessage, tokens int64) (any, error) {
		return q.Response(r.ID, vectors, tokens)
	})
}
