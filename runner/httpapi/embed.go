package httpapi

import (
	"errors"
	"io"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/runner/batch"
)

// rerankCutter returns what cuts the texts of the request, nil for none.
func (a *activeRequest) rerankCutter() *batch.RerankCutter {
	if a.path == "/v1/rerank" {
		return a.ref.Engine.Features().RerankCutter
	}
	return nil
}

// batcher returns the batcher that serves the request, nil for none.
func (a *activeRequest) batcher() *batch.Batcher {
	if a.path == "/v1/embeddings" {
		return a.ref.Engine.Features().Embeddings
	}
	return nil
}

// serveBatched serves a request through its model's batcher. If it succeeds, the response is in w and r is nil;
// otherwise r is the error. It returns false, and has written nothing, for a request that must be relayed unchanged.
func (a *activeRequest) serveBatched(q *batch.Batcher, w io.Writer) (r *reply, served bool) {
	ctx, cancel := a.waitContext()
	defer cancel(nil)
	err := q.Serve(ctx, batch.EmbeddingRequest{Body: a.body, Priority: rpc.ParsePriority(string(a.field(rpc.HeaderPriority)))}, w)
	if errors.Is(err, batch.ErrNotBatched) {
		return nil, false
	}
	a.complete(err)
	var own *batch.Error
	var engine *batch.EngineError
	switch {
	case err == nil:
		return nil, true
	case errors.As(err, &own):
		return failure(own.Status, own.Code, own.Message), true
	case errors.As(err, &engine):
		return &reply{status: engine.Status, kind: vectorsType, body: engine.Body}, true
	case errors.Is(err, batch.ErrUnsent):
		return refusal(rpc.RefusedNotLoaded), true
	case errors.Is(err, relay.ErrClientGone):
		return clientGone, true
	}
	return a.engineFailed(err), true
}

// vectorsType is the content type of a batcher's responses.
const vectorsType = "application/json; charset=utf-8"
