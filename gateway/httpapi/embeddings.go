package httpapi

import (
	"reveille/gateway/embedding"
)

var embeddingsPath = []byte("/v1/embeddings")

// embeddings relays embedding requests. For models that allow dimensions, the gateway cuts and normalises the vectors
// itself.
func (s *Server) embeddings(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	if err := c.canonicalName(); err != nil {
		return err
	}
	if c.body, err = embedding.FromJina(c.body); err != nil {
		return err
	}
	form, err := c.embeddingForm()
	if err != nil {
		return err
	}
	x := &exchange{call: c, path: embeddingsPath, inputs: form.Inputs}
	if form.Dimensions > 0 {
		x.translate = form.Cut
	}
	return x.start()
}

// embeddingForm reads how the request wants its embeddings encoded, and removes from the body what the engine must not see
// of that.
func (c *call) embeddingForm() (form embedding.Form, err error) {
	form, c.body, err = embedding.ReadForm(c.body, c.model)
	return form, err
}
