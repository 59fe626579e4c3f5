package httpapi

import (
	"crypto/rand"
	"time"

	"reveille/gateway/bodycheck"
	"reveille/gateway/responses"
	"reveille/infra/relay"
)

// responses serves /v1/responses: a chat of an engine, told as a response.
func (s *Server) responses(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	f := &responses.ResponseWriter{ID: rand.Text(), Model: c.model.ID, Began: c.began, Now: time.Now}
	if c.body, f.Echo, err = responses.Translate(c.body, c.model.ID, c.stream); err != nil {
		return err
	}
	if err := c.vet(bodycheck.ForRoute("chat")); err != nil {
		return responses.Asked(err)
	}
	x := &exchange{call: c, path: []byte(responses.ChatPath)}
	if c.stream {
		x.into = responses.NewStream(f)
	} else {
		x.answer = func(x *exchange, resp *relay.Response) error { return x.sendTranslated(resp, f.Answer) }
	}
	return x.start()
}
