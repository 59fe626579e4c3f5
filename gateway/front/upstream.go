package front

import (
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/wire"
)

// upstream loads the model that the path names and passes the request on to its engine: method, query, body and the
// rest of the path as they are. A path that ends with the name is led to the one with a slash, so that relative links
// of an engine's own pages work.
func (s *Server) upstream(r *request) error {
	id, rest, found := wire.SplitUpstream(r.hit.Tail, s.isName)
	if !found {
		return wire.UnknownModel(r.hit.ID)
	}
	model, err := s.modelNamed(id)
	if err != nil {
		return err
	}
	path, query, hasQuery := strings.Cut(string(r.ctx.Request.Header.RequestURI()), "?")
	if hasQuery {
		query = "?" + query
	}
	if rest == "" {
		s.m.answer(r.routeName(), fasthttp.StatusTemporaryRedirect)
		r.ctx.Response.Header.Set("Location", path+"/"+query)
		r.ctx.SetStatusCode(fasthttp.StatusTemporaryRedirect)
		return nil
	}
	c := &call{request: r, model: model, asked: id, body: r.ctx.PostBody()}
	x := &exchange{call: c, path: []byte(rest + query), raw: true}
	return x.start()
}
