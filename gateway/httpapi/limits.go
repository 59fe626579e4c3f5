package httpapi

import (
	"cmp"
	"errors"
	"math"
	"net"
	"strconv"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/infra/relay"
)

// headerReceived decides from the head alone whether to skip a large body: a request that would be refused anyway need
// not wait for it. Small bodies are always read, which is cheaper than checking twice. With Expect: 100-continue, no
// body is read before expectContinue has responded.
func (s *Server) headerReceived(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
	defer s.web.RecoverPanic("head of a request") // its body is read then, and its handler meets the same panic
	if n := h.ContentLength(); relay.Skippable(n) && len(h.Peek("Expect")) == 0 {
		source := sourceOf(h)
		found := match(h)
		_, e := s.cfg.Browsers.Check(source)
		if e == nil {
			_, e = s.authorize(h, found, source)
		}
		if e != nil || s.checkBodySize(n, found.Route) != nil {
			relay.SkipBody(h)
		}
	}
	return c
}

// expectContinue responds to a client that asks before it sends its body (Expect: 100-continue). It refuses a request
// that its headers alone rule out.
func (s *Server) expectContinue(ctx *fasthttp.RequestCtx) (status int) {
	status = fasthttp.StatusInternalServerError
	defer s.web.RecoverPanic("head of a request")
	r := s.newRequest(ctx)
	err := r.checkHead()
	if err == nil {
		err = r.bodyError(s.checkBodySize(ctx.Request.Header.ContentLength(), r.Match.Route))
	}
	if err == nil {
		return fasthttp.StatusContinue
	}
	r.writeError(err)
	r.observed.end(r)
	return ctx.Response.StatusCode()
}

// bodyError maps an error of the relay.BodyReader to the client's error.
func (r *request) bodyError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, relay.ErrBodyTooLarge):
		limit := cmp.Or(maxBody(r.Match.Route), math.MaxInt)
		if r.Match.Route == nil || r.Match.Route.Body != api.BodyFile {
			limit = min(limit, r.s.cfg.MaxBody)
		}
		return api.Newf(api.RequestTooLarge, "The request body is larger than the limit of %d bytes.", limit)
	case errors.Is(err, relay.ErrBuffersFull):
		return api.New(api.Overloaded, "Too many requests and responses are buffered in memory. Retry the request.")
	case errors.Is(err, relay.ErrBodySlow):
		return api.New(api.RequestTimeout, "The request did not arrive in time.")
	}
	return api.New(api.InvalidRequest, "The request body is incomplete or malformed.").WithCause(err)
}

// badRequest responds to a request whose head could not be read: too large, broken, or too slow. The connection ends
// with the response. The gateway keeps reading for a while, so that the response reaches the client.
func (s *Server) badRequest(ctx *fasthttp.RequestCtx, err error) {
	r := s.newRequest(ctx)
	relay.Linger(ctx.Conn())
	refused := r.checkHead() // also sets the headers that every response to a page needs
	hasHead := len(ctx.Request.Header.RawHeaders()) > 0
	var small *fasthttp.ErrSmallBuffer
	var ne net.Error
	switch {
	case hasHead && (errors.Is(refused, api.ForbiddenHost) || errors.Is(refused, api.ForbiddenOrigin)):
		r.writeError(refused)
	case errors.As(err, &small):
		r.writeError(api.New(api.HeadersTooLarge, "The request's headers are too large."))
	case errors.As(err, &ne) && ne.Timeout():
		r.writeError(api.New(api.RequestTimeout, "The request did not arrive in time."))
	default:
		r.writeError(api.New(api.InvalidRequest, "The request is not valid HTTP."))
	}
	ctx.SetConnectionClose()
	r.observed.end(r)
}

// tooManyConns returns the response to a connection over the limit.
func tooManyConns() []byte {
	e := api.New(api.Overloaded, "Too many connections are open.")
	body := api.OpenAI.Body(e, "")
	return append([]byte("HTTP/1.1 503 Service Unavailable\r\nContent-Type: "+api.ContentType+"\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: "+
		strconv.Itoa(len(body))+"\r\n\r\n"), body...)
}
