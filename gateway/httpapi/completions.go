package httpapi

import "reveille/gateway/legacy"

var completionsPath = []byte("/v1/completions")

// completions serves text completions. It translates llama-server's log-probabilities to OpenAI's.
func (s *Server) completions(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	if err := c.canonicalName(); err != nil {
		return err
	}
	x := &exchange{call: c, path: completionsPath}
	if !c.engineModel().LlamaCpp {
		return x.serveInference()
	}
	q, err := legacy.Translate(c.body)
	if err != nil {
		return err
	}
	if q == nil {
		return x.serveInference()
	}
	c.body = q.Body
	if c.stream {
		x.translator = legacy.NewStream(q)
	} else {
		x.translate = q.Response
	}
	return x.serveInference()
}
