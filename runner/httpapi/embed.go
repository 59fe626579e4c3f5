package httpapi

import (
	"errors"
	"io"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/runner/batch"
)

// queued is an engine whose embedding requests go through one queue.
type queued interface{ Embeddings() *batch.Batcher }

// queue returns the queue that the request belongs to, nil for none.
func (x *exchange) queue() *batch.Batcher {
	if q, ok := x.ref.Engine.(queued); ok && x.path == "/v1/embeddings" {
		return q.Embeddings()
	}
	return nil
}

// embed answers a request through its model's queue. If it succeeds, the answer is in w and r is nil; otherwise r is the error.
// It returns false, and has written nothing, for a request that is to be relayed unchanged.
func (x *exchange) embed(q *batch.Batcher, w io.Writer) (r *reply, served bool) {
	life, cancel := x.life()
	defer cancel(nil)
	err := q.Serve(life, batch.Call{Body: x.body, Priority: batch.ParsePriority(string(x.field(rpc.HeaderPriority)))}, w)
	if errors.Is(err, batch.ErrNotBatched) {
		return nil, false
	}
	x.finish(err)
	var own *batch.Error
	var engine *batch.EngineError
	switch {
	case err == nil:
		return nil, true
	case errors.As(err, &own):
		return failure(own.Status, own.Code, own.Message), true
	case errors.As(err, &engine):
		return &reply{status: engine.Status, kind: vectors, body: engine.Body}, true
	case errors.Is(err, batch.ErrUnsent):
		return refusal(rpc.RefusedNotLoaded), true
	case errors.Is(err, relay.ErrGone):
		return nobody, true
	}
	return x.engineFailed(err), true
}

// vectors is the content type of the answers of a queue.
const vectors = "application/json; charset=utf-8"
