package httpapi

import (
	"reveille/gateway/embedding"
)

var embeddingsPath = []byte("/v1/embeddings")

// embeddings relays embedding requests. For models that allow dimensions, the gateway cuts and normalizes the vectors
// itself.
func (s *Server) embeddings(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	if err := c.canonicalName(); err != nil {
		return err
	}
	if c.body, err = embedding.ToOpenAI(c.body); err != nil {
		return err
	}
	var form embedding.Format
	if form, c.body, err = embedding.ReadFormat(c.body, c.model); err != nil {
		return err
	}
	x := &exchange{call: c, path: embeddingsPath, embeddingCount: form.Inputs}
	if form.Dimensions > 0 {
		x.translate = form.Truncate
	}
	return x.serveInference()
}
