package httpapi

import (
	"reveille/gateway/legacy"
	"reveille/infra/relay"
)

// completions serves text completions. It translates llama-server's where they differ from OpenAI's.
func (s *Server) completions(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	if err := c.canonicalName(); err != nil {
		return err
	}
	x := &exchange{call: c, path: completionsPath}
	if !c.engineModel().Llama {
		return x.start()
	}
	q, err := legacy.Translate(c.body)
	if err != nil {
		return err
	}
	q.ID, q.Model, q.Created = c.ID, c.model.ID, c.Began.Unix()
	switch c.body, x.path = q.Body, []byte(q.Path); {
	case q.Plain:
	case c.stream:
		x.translator = legacy.NewStream(q)
	default:
		x.answer = func(x *exchange, resp *relay.Response) error { return x.sendTranslated(resp, q.Answer) }
	}
	return x.start()
}

var completionsPath = []byte(legacy.Path)
