package httpapi

import (
	"reveille/gateway/bodycheck"
	"reveille/gateway/cohere"
	"reveille/infra/relay"
)

// cohereChat serves /v2/chat of Cohere: an engine's chat in Cohere's form.
func (s *Server) cohereChat(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	if c.body, err = cohere.Translate(c.body, c.model.ID, c.stream); err != nil {
		return err
	}
	if err := c.checkBody(bodycheck.ForRoute("chat")); err != nil {
		return err
	}
	x := &exchange{call: c, path: []byte(cohere.ChatPath)}
	if c.stream {
		x.translator = cohere.NewStream(c.ID)
	} else {
		x.answer = func(x *exchange, resp *relay.Response) error {
			return x.sendTranslated(resp, func(engine []byte) ([]byte, error) { return cohere.Answer(engine, c.ID) })
		}
	}
	return x.start()
}
