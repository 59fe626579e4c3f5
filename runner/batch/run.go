package batch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"reveille/infra/relay"
)

// engineRun is a batch in flight: one engine call, or several if it is split. It copies all it needs from the requests,
// which can end before it.
type engineRun struct {
	batch             *Batch
	sequences         []sequence // grouped by request, in the request's order
	model, dimensions json.RawMessage
	verbatim          []byte // the body to send unchanged if this is one whole request without a truncated input, else nil
	reached           bool   // at least part of a call reached the engine
	whole             bool   // the engine computed all sequences in one call
	shortage          memoryShortage
	ctx               context.Context
	cancel            context.CancelCauseFunc
}

// sequence is an item with its input.
type sequence struct {
	Item
	raw json.RawMessage
}

// prepareLocked creates the run of a batch.
func (b *Batcher) prepareLocked(batch *Batch, now time.Time) *engineRun {
	x := &engineRun{batch: batch, sequences: make([]sequence, len(batch.Items))}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	b.running[x] = struct{}{}
	b.meters.formed(batch, b.cfg.Limits)
	b.log.Debug("embedding batch", "tokens", batch.Tokens, "sequences", len(batch.Items), "in_flight", batch.OtherTokens,
		"full", batch.Full)
	slices.SortStableFunc(batch.Items, func(p, q Item) int { return cmp.Compare(p.Request, q.Request) })
	for i, it := range batch.Items {
		j := b.jobs[it.Request]
		x.sequences[i] = sequence{it, j.inputs[it.Index].raw}
		if i > 0 && batch.Items[i-1].Request == it.Request {
			continue
		}
		if j.runs++; j.runs == 1 {
			b.meters.wait.Update(now.Sub(j.queued).Seconds())
		}
	}
	first, last := batch.Items[0].Request, batch.Items[len(batch.Items)-1].Request
	j := b.jobs[first]
	x.model, x.dimensions = j.model, j.dimensions
	if first == last && len(batch.Items) == len(j.inputs) {
		x.verbatim = j.body
	}
	return x
}

// execute sends a batch, delivers the results and releases its share of the context.
func (b *Batcher) execute(x *engineRun) {
	b.callEngine(x, x.sequences, 1)
	x.cancel(nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.running, x)
	switch {
	case x.shortage.failedSize > 0:
		b.packer.ceiling.ranOutOfMemory(x.shortage.failedSize, x.shortage.splitSize)
	case x.whole:
		b.packer.ceiling.succeeded(x.batch.Tokens, x.batch.Full)
	}
	b.packer.Done(x.batch)
	b.dispatchLocked(time.Now())
}

// callEngine makes the call for part of a run and delivers the result. try starts at 1 and increases each time the call
// is split for lack of memory.
func (b *Batcher) callEngine(x *engineRun, part []sequence, try int) {
	whole := len(part) == len(x.sequences)
	body := x.verbatim
	if body == nil || !whole {
		body = callBody(x.model, x.dimensions, part)
	}
	status, response, err := b.cfg.Engine.Embed(x.ctx, body, nil)
	if errors.Is(err, relay.ErrBroken) {
		b.awaitEngine(x.ctx)
	}
	reached := !neverSent(err)
	x.reached = x.reached || reached
	short := err == nil && b.isOutOfMemory(status, response, part, try)
	if status != 200 && !short {
		x.shortage.unclear++
	}
	switch {
	case !reached:
		b.failUnsent(x, part)
	case err != nil:
		b.fail(part, err)
	case status == 200:
		x.whole = x.whole || whole
		b.deliver(part, response, whole && x.verbatim != nil)
	case short:
		b.retry(x, part, try, response)
	case blamesRequest(status) && part[0].Request != part[len(part)-1].Request:
		b.isolate(x, part, try)
	default:
		b.fail(part, &EngineError{Status: status, Body: response})
	}
}

// awaitEngine waits until an engine whose connection broke during a call responds again or cannot be reached. The
// connections of an exiting engine close one by one. A call sent on the last of them would be lost and could not be
// sent elsewhere.
func (b *Batcher) awaitEngine(ctx context.Context) {
	const tries = 10
	for range tries {
		if _, err := b.cfg.Engine.Tokens(ctx, "a", true); !errors.Is(err, relay.ErrBroken) {
			return
		}
	}
}

// blamesRequest reports whether a status can be caused by one request, rather than by the engine or by all requests.
func blamesRequest(status int) bool {
	switch status {
	case 401, 403, 408, 429:
		return false
	}
	return status/100 == 4 || status == 500
}

// isolate sends each half of the requests of a refused call again.
func (b *Batcher) isolate(x *engineRun, part []sequence, try int) {
	var starts []int // the first sequence of every request but the first
	for i := 1; i < len(part); i++ {
		if part[i].Request != part[i-1].Request {
			starts = append(starts, i)
		}
	}
	middle := starts[len(starts)/2]
	for _, half := range [...][]sequence{part[:middle], part[middle:]} {
		if b.isWanted(half) {
			b.callEngine(x, half, try)
		}
	}
}

// retry sends sequences in smaller calls after the engine ran out of memory.
func (b *Batcher) retry(x *engineRun, part []sequence, try int, reason []byte) {
	tokens := sum(part)
	if !isDivisible(part, try) {
		if len(part) == 1 {
			x.shortage.unclear++
		} else {
			x.shortage.learn(tokens, minTokens)
		}
		b.meters.oomFailures.Inc()
		b.log.Warn("engine out of memory", "tokens", tokens, "sequences", len(part), "tries", try)
		const excerpt = 200
		b.fail(part, outOfMemoryError(tokens, try, string(bytes.ToValidUTF8(reason[:min(len(reason), excerpt)], nil))))
		return
	}
	unclear, splitSize := x.shortage.unclear, smallerSize(tokens, try)
	if x.shortage.limit == 0 || splitSize < x.shortage.limit {
		x.shortage.limit = splitSize
	}
	for rest := part; len(rest) > 0; {
		n := leadingCount(rest, x.shortage.limit)
		if piece := rest[:n]; b.isWanted(piece) {
			b.meters.retried(sum(piece))
			b.callEngine(x, piece, try+1)
		} else {
			x.shortage.unclear++
		}
		rest = rest[n:]
	}
	if x.shortage.unclear == unclear {
		x.shortage.learn(tokens, splitSize)
	}
}

func (b *Batcher) isWanted(part []sequence) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isWantedLocked(part)
}

// failUnsent fails the jobs of sequences whose call did not reach the engine.
func (b *Batcher) failUnsent(x *engineRun, part []sequence) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range part {
		if j := b.jobs[s.Request]; j != nil {
			b.failLocked(s.Request, unsentOrIncomplete(x.reached || j.runs > 1))
		}
	}
}

func (b *Batcher) fail(part []sequence, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range part {
		b.failLocked(s.Request, err)
	}
}

// deliver distributes a response to the jobs. verbatim means that the call was one job's request, sent unchanged.
func (b *Batcher) deliver(part []sequence, response []byte, verbatim bool) {
	found, err := readResponse(response, len(part))
	if err != nil {
		b.fail(part, badReply(err))
		return
	}
	values := make([][]float32, len(part))
	for i, e := range found {
		values[i], _ = e.values() // nil if unusable
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, s := range part {
		j := b.jobs[s.Request]
		switch {
		case j == nil:
			continue
		case values[i] == nil:
			b.failLocked(s.Request, badReply(errValues))
			continue
		}
		j.results[s.Index] = values[i]
		if j.left--; j.left == 0 {
			if verbatim {
				j.response = response
			}
			b.finishLocked(j)
		}
	}
}
