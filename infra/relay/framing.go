package relay

import "github.com/valyala/fasthttp"

// SmugglingCheck reports a request that carries both Content-Length and Transfer-Encoding, whatever their case, order or
// value. fasthttp accepts such a request and shows a rewritten header, so a proxy before us may have seen another end of
// the body than fasthttp did. The caller answers 400; the connection is marked to be closed after that answer, because
// its next bytes may be smuggled ones. It needs no option of the server.
func SmugglingCheck(ctx *fasthttp.RequestCtx) bool {
	raw := ctx.Request.Header.RawHeaders()
	if !hasField(raw, "transfer-encoding") || !hasField(raw, "content-length") {
		return false
	}
	ctx.SetConnectionClose()
	return true
}
