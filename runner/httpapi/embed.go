package httpapi

import (
	"errors"

	"github.com/valyala/fasthttp"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/runner/batch"
	"reveille/runner/host"
)

// queued is an engine whose embedding requests go through one queue.
type queued interface{ Embeddings() *batch.Batcher }

// queueOf returns the queue that a request belongs to, nil for none.
func queueOf(e host.Engine, path []byte) *batch.Batcher {
	if q, ok := e.(queued); ok && string(path) == "/v1/embeddings" {
		return q.Embeddings()
	}
	return nil
}

// embed answers a request through its model's queue. It returns false, and has answered nothing, for a request that is
// to be relayed unchanged.
func (s *Server) embed(ctx *fasthttp.RequestCtx, x *exchange, q *batch.Batcher) bool {
	life, cancel := x.life()
	defer cancel(nil)
	ctx.SetContentType("application/json; charset=utf-8")
	err := q.Serve(life, batch.Call{Body: ctx.PostBody(), Priority: batch.ParsePriority(string(ctx.Request.Header.Peek(rpc.HeaderPriority)))}, ctx.Response.BodyWriter())
	if errors.Is(err, batch.ErrNotBatched) {
		return false
	}
	x.finish(err)
	var own *batch.Error
	var engine *batch.EngineError
	switch {
	case err == nil:
	case errors.As(err, &own):
		s.fail(ctx, own.Status, own.Code, own.Message)
	case errors.As(err, &engine):
		ctx.SetStatusCode(engine.Status)
		ctx.SetBody(engine.Body)
	case errors.Is(err, batch.ErrUnsent):
		s.refuse(ctx, rpc.RefusedNotLoaded)
	case errors.Is(err, relay.ErrGone): // nobody is left to answer
	default:
		s.engineFailed(ctx, err)
	}
	return true
}
