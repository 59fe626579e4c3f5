package httpapi

import (
	"github.com/valyala/fasthttp"

	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// reply is an answer of the runner itself.
type reply struct {
	status      int
	name, value string // a header field of infra/rpc
	kind        string // content type
	body        []byte
}

// nobody replies to a gateway that has left.
var nobody = &reply{status: fasthttp.StatusBadGateway, name: rpc.HeaderCode, value: "client_gone", kind: "application/json"}

// refusal says that no engine saw the request.
func refusal(reason string) *reply {
	return &reply{rpc.StatusRefused, rpc.HeaderRefused, reason, "application/json", errorBody("refused", reason)}
}

// failure is one of the runner's own errors.
func failure(status int, code, message string) *reply {
	return &reply{status, rpc.HeaderCode, code, "application/json", errorBody(code, message)}
}

// send makes the reply the answer of ctx. A nil reply sends what the embedding queue has already written to the body.
func (r *reply) send(ctx *fasthttp.RequestCtx) {
	if r == nil {
		ctx.SetContentType(vectors)
		return
	}
	ctx.SetStatusCode(r.status)
	if r.name != "" {
		ctx.Response.Header.Set(r.name, r.value)
	}
	ctx.SetContentType(r.kind)
	ctx.SetBody(r.body)
}

// answer turns resp into this reply.
func (r *reply) answer(resp *relay.Response) *relay.Response {
	resp.Answer(r.status, r.kind, r.body)
	if r.name != "" {
		resp.Set(r.name, r.value)
	}
	return resp
}
