package httpapi

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/infra/rpc"
)

// conversations gives saved conversations to the pool's other runners: a list of those with an identity, or a part of one.
// The answers are signed, because what they hold goes into an engine.
func (s *Server) conversations(ctx *fasthttp.RequestCtx, path string) {
	if _, ok := s.authorised(ctx, ""); !ok {
		return
	}
	identity, name, one := strings.Cut(path, "/")
	var body []byte
	switch {
	case !ctx.IsGet():
		s.fail(ctx, fasthttp.StatusMethodNotAllowed, "method_not_allowed", "Use GET.")
		return
	case !one:
		body, _ = json.Marshal(s.cfg.Conversations.List(identity)) // strings and numbers always marshal
		ctx.SetContentType("application/json")
	default:
		offset, err := strconv.ParseInt(string(ctx.QueryArgs().Peek("offset")), 10, 64)
		found := false
		if err == nil {
			body, found = s.cfg.Conversations.Part(identity, name, offset)
		}
		if !found {
			s.fail(ctx, fasthttp.StatusNotFound, "not_found", "There is no such conversation on this host.")
			return
		}
		ctx.SetContentType("application/octet-stream")
	}
	ctx.Response.Header.Set(rpc.HeaderProof, s.verify.Prove(string(ctx.Request.Header.Peek(rpc.HeaderAuth)), body))
	ctx.Response.SetBodyRaw(body)
}
