package httpapi

import (
	"reveille/gateway/rerank"
)

var rerankPath = []byte("/v1/rerank")

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
	if c.body, err = q.EngineBody(c.body, c.model.ID); err != nil {
		return err
	}
	x := &exchange{call: c, path: rerankPath}
	x.translate = func(engine []byte) ([]byte, error) {
		return q.Response(engine, c.ID, c.model.ID, c.model.NormalizeScores)
	}
	return x.serveInference()
}
