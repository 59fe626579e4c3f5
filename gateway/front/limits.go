package front

import (
	"errors"
	"net"
	"strconv"

	"github.com/valyala/fasthttp"

	"reveille/gateway/wire"
)

const (
	// freeBody is how many bytes of body are read, so that the connection survives, from one whom the headers alone
	// refuse; and how much memory for a body a connection keeps from one request to the next.
	freeBody = 64 << 10
)

// bodyLimit bounds a body by what the headers say: a large one is read only for a request that may use its route.
func (s *Server) bodyLimit(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
	if n := h.ContentLength(); n > freeBody || n == -1 {
		if _, e := s.refusal(h, match(h)); e != nil {
			c.MaxRequestBodySize = freeBody
		}
	}
	return c
}

// expected answers a client that waits for leave to send its body (Expect: 100-continue): the refusals that the headers
// allow come before the body.
func (s *Server) expected(ctx *fasthttp.RequestCtx) int {
	r := s.newRequest(ctx)
	err := r.letIn()
	if err == nil && ctx.Request.Header.ContentLength() > s.cfg.MaxBody {
		err = s.tooLarge()
	}
	if err == nil {
		return fasthttp.StatusContinue
	}
	r.fail(err)
	return ctx.Response.StatusCode()
}

func (s *Server) tooLarge() error {
	return wire.Newf(wire.RequestTooLarge, "The request body is larger than the limit of %d bytes.", s.cfg.MaxBody)
}

// unreadable answers a request that fasthttp could not read: too large, broken, or too slow. The connection ends with
// the answer; what the client still sends is read for a while, so that the answer reaches it.
func (s *Server) unreadable(ctx *fasthttp.RequestCtx, err error) {
	r := s.newRequest(ctx)
	lingerOf(ctx.Conn())
	var small *fasthttp.ErrSmallBuffer
	var ne net.Error
	switch refused := r.letIn(); {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		// Of a chunked body that grew too large fasthttp has forgotten whose it was.
		if refused == nil || len(ctx.Request.Header.RawHeaders()) == 0 {
			refused = s.tooLarge()
		}
		r.fail(refused)
	case errors.As(err, &small):
		r.fail(wire.New(wire.HeadersTooLarge, "The request's headers are too large."))
	case errors.As(err, &ne) && ne.Timeout():
		r.fail(wire.New(wire.RequestTimeout, "The request did not arrive in time."))
	default:
		r.fail(wire.New(wire.InvalidRequest, "The request could not be understood as HTTP."))
	}
	ctx.SetConnectionClose()
}

// holdBody counts the body as held until dropBody, or refuses.
func (r *request) holdBody() error {
	n := int64(len(r.ctx.PostBody()))
	if held := r.s.held.Add(n); n > 0 && held > r.s.cfg.MaxHeldBytes {
		r.s.held.Add(-n)
		return wire.New(wire.Overloaded, "The requests that wait fill the gateway's memory.")
	}
	r.held = n
	return nil
}

// dropBody gives the body's memory back; its bytes are void then. It may be called more than once.
func (r *request) dropBody() {
	r.s.held.Add(-r.held)
	r.held, r.keepBody = 0, false
	if cap(r.ctx.PostBody()) > freeBody {
		r.ctx.Request.SwapBody(nil) // fasthttp would keep it as long as the connection lives
	}
}

// tooManyConns is what a connection over the limit is told.
func tooManyConns() []byte {
	e := wire.New(wire.Overloaded, "Too many connections are open.")
	body := wire.OpenAI.Body(e, "")
	return append([]byte("HTTP/1.1 503 Service Unavailable\r\nContent-Type: "+wire.ContentType+"\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: "+
		strconv.Itoa(len(body))+"\r\n\r\n"), body...)
}
