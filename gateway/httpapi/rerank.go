package httpapi

import (
	"reveille/gateway/rerank"
	"reveille/infra/relay"
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
	x.answer = func(x *exchange, resp *relay.Response) error {
		return x.sendTranslated(resp, func(engine []byte) ([]byte, error) {
			return q.Answer(engine, x.ID, x.model.ID, x.model.NormalizeScores)
		})
	}
	return x.start()
}
