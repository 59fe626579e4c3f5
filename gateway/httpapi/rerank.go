package httpapi

import (
	"reveille/gateway/rerank"
	"reveille/infra/recipe"
)

// rerank serves the rerank dialects.
func (s *Server) rerank(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	q, err := rerank.Read(c.body)
	if err != nil {
		return err
	}
	family := c.engineFamily()
	if c.body, err = q.EngineBody(c.body, c.model.ID, family == recipe.TEI); err != nil {
		return err
	}
	x := &exchange{call: c, path: []byte("/v1/rerank")}
	if family == recipe.TEI {
		x.path = []byte("/rerank")
	}
	x.translate = func(engine []byte) ([]byte, error) {
		return q.Response(engine, c.ID, c.model.ID, c.model.NormalizeScores, family == recipe.LlamaCpp)
	}
	return x.serveInference()
}
