package httpapi

import (
	"crypto/rand"
	"time"

	"reveille/gateway/bodycheck"
	"reveille/gateway/responses"
	"reveille/infra/relay"
)

// responses serves /v1/responses: an engine's chat, encoded as a response.
func (s *Server) responses(r *request) error {
	f := &responses.ResponseWriter{ID: rand.Text(), Began: r.began, Now: time.Now}
	c, err := r.asChat(f)
	if err != nil {
		return err
	}
	x := &exchange{call: c, path: []byte(responses.ChatPath)}
	if c.stream {
		x.into = responses.NewStream(f)
	} else {
		x.answer = func(x *exchange, resp *relay.Response) error { return x.sendTranslated(resp, f.Answer) }
	}
	return responses.Asked(x.start())
}

// inputTokens serves /v1/responses/input_tokens.
func (s *Server) inputTokens(r *request) error {
	c, err := r.asChat(&responses.ResponseWriter{})
	if err != nil {
		return err
	}
	x := &exchange{call: c, path: []byte(responses.InputTokensPath)}
	x.answer = func(x *exchange, resp *relay.Response) error { return x.sendTranslated(resp, responses.InputTokens) }
	return responses.Asked(x.start())
}

// asChat checks the body of a request and turns it into a chat, whose answer f encodes.
func (r *request) asChat(f *responses.ResponseWriter) (*call, error) {
	c, err := r.parse()
	if err != nil {
		return nil, err
	}
	f.Model = c.model.ID
	if c.body, f.Echo, err = responses.Translate(c.body, c.model.ID, c.stream); err != nil {
		return nil, err
	}
	if err := c.vet(bodycheck.ForRoute("chat")); err != nil {
		return nil, responses.Asked(err)
	}
	return c, nil
}
