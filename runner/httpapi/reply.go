package httpapi

import (
	"github.com/valyala/fasthttp"

	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// reply is a response of the runner itself.
type reply struct {
	status      int
	name, value string // a header field of infra/rpc
	kind        string // content type
	body        []byte
}

// clientGone is the reply to a gateway that has disconnected.
var clientGone = &reply{status: fasthttp.StatusBadGateway, name: rpc.HeaderCode, value: "client_gone", kind: "application/json"}

// refusal is the reply to a request that no engine saw.
func refusal(reason string) *reply {
	return &reply{rpc.StatusRefused, rpc.HeaderRefused, reason, "application/json", errorBody("refused", reason)}
}

// failure is the reply with one of the runner's own errors.
func failure(status int, code, message string) *reply {
	return &reply{status, rpc.HeaderCode, code, "application/json", errorBody(code, message)}
}

// send makes the reply the response of ctx. A nil reply sends what the batcher has already written to the body.
func (r *reply) send(ctx *fasthttp.RequestCtx) {
	if r == nil {
		ctx.SetContentType(vectorsType)
		return
	}
	ctx.SetStatusCode(r.status)
	if r.name != "" {
		ctx.Response.Header.Set(r.name, r.value)
	}
	ctx.SetContentType(r.kind)
	ctx.SetBody(r.body)
}

// writeTo turns resp into this reply.
func (r *reply) writeTo(resp *relay.Response) *relay.Response {
	resp.Replace(r.status, r.kind, r.body)
	if r.name != "" {
		resp.Set(r.name, r.value)
	}
	return resp
}
