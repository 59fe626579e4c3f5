package relay

import "github.com/valyala/fasthttp"

// SmugglingCheck reports a request that carries both Content-Length and Transfer-Encoding, whatever their case, order
// or value. fasthttp accepts such a request and shows a rewritten header, so a proxy in front of us may have seen the
// body end elsewhere. The caller answers 400. The connection is marked to close after that answer, because its next
// bytes may be smuggled ones. The check needs no server option.
func SmugglingCheck(ctx *fasthttp.RequestCtx) bool {
	raw := ctx.Request.Header.RawHeaders()
	if !hasField(raw, "transfer-encoding") || !hasField(raw, "content-length") {
		return false
	}
	ctx.SetConnectionClose()
	return true
}
