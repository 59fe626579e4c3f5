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

// batchRun is a batch in flight: one engine call, or several if it is split. It holds all it needs from the requests,
// which may end before it does.
type batchRun struct {
	batch             *Batch
	sequences         []sequence // grouped by request, in the request's order
	model, dimensions json.RawMessage
	verbatim          []byte // the body of the only request, sent unchanged; nil if an input of it was cut
	seen              bool   // at least part of a call reached the engine
	whole             bool   // the engine computed all sequences in one call
	short             shortage
	ctx               context.Context
	cancel            context.CancelCauseFunc
}

// sequence is an item with its input.
type sequence struct {
	Item
	raw json.RawMessage
}

// prepareLocked creates the run of a batch.
func (b *Batcher) prepareLocked(batch *Batch, now time.Time) *batchRun {
	x := &batchRun{batch: batch, sequences: make([]sequence, len(batch.Items))}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	b.inFlight[x] = struct{}{}
	b.meters.formed(batch, b.cfg.Limits)
	b.log.Debug("embedding batch", "tokens", batch.Tokens, "sequences", len(batch.Items), "in_flight", batch.InFlight,
		"full", batch.Full)
	slices.SortStableFunc(batch.Items, func(p, q Item) int { return cmp.Compare(p.Request, q.Request) })
	for i, it := range batch.Items {
		j := b.jobs[it.Request]
		x.sequences[i] = sequence{it, j.inputs[it.Index].raw}
		if i > 0 && batch.Items[i-1].Request == it.Request {
			continue
		}
		if j.runs++; j.runs == 1 {
			b.meters.wait.Update(now.Sub(j.entered).Seconds())
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

// execute sends a batch, delivers its answers and releases its share of the context.
func (b *Batcher) execute(x *batchRun) {
	b.send(x, x.sequences, 1)
	x.cancel(nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.inFlight, x)
	switch {
	case x.short.failed > 0:
		b.packer.ceiling.outOfMemory(x.short.failed, x.short.cut)
	case x.whole:
		b.packer.ceiling.succeeded(x.batch.Tokens, x.batch.Full)
	}
	b.packer.Done(x.batch)
	b.dispatchLocked(time.Now())
}

// send makes the call for part of a run and delivers the result. try starts at 1 and increases each time the call is
// split for lack of memory.
func (b *Batcher) send(x *batchRun, part []sequence, try int) {
	whole := len(part) == len(x.sequences)
	body := x.verbatim
	if body == nil || !whole {
		body = callBody(x.model, x.dimensions, part)
	}
	status, answer, err := b.cfg.Engine.Embed(x.ctx, body, nil)
	if errors.Is(err, relay.ErrBroken) {
		b.awaitEngine(x.ctx)
	}
	seen := !unseen(err)
	x.seen = x.seen || seen
	short := err == nil && b.outOfMemory(status, answer, part, try)
	if status != 200 && !short {
		x.short.unclear++
	}
	switch {
	case !seen:
		b.failUnsent(x, part)
	case err != nil:
		b.fail(part, err)
	case status == 200:
		x.whole = x.whole || whole
		b.deliver(part, answer, whole && x.verbatim != nil)
	case short:
		b.retry(x, part, try, answer)
	case blamesRequest(status) && part[0].Request != part[len(part)-1].Request:
		b.isolate(x, part, try)
	default:
		b.fail(part, &EngineError{Status: status, Body: answer})
	}
}

// awaitEngine waits until an engine whose connection broke during a call answers again or cannot be reached. A dying
// engine's connections close one by one, and a call sent on the last of them would be lost and could not be sent
// elsewhere.
func (b *Batcher) awaitEngine(ctx context.Context) {
	const tries = 10
	for range tries {
		if _, err := b.cfg.Engine.Tokens(ctx, "a", true); !errors.Is(err, relay.ErrBroken) {
			return
		}
	}
}

// blamesRequest reports whether a status may be one request's fault rather than the engine's, or that of all requests.
func blamesRequest(status int) bool {
	switch status {
	case 401, 403, 408, 429:
		return false
	}
	return status/100 == 4 || status == 500
}

// isolate sends each half of the requests of a refused call again.
func (b *Batcher) isolate(x *batchRun, part []sequence, try int) {
	var starts []int // of every request but the first
	for i := 1; i < len(part); i++ {
		if part[i].Request != part[i-1].Request {
			starts = append(starts, i)
		}
	}
	middle := starts[len(starts)/2]
	for _, half := range [...][]sequence{part[:middle], part[middle:]} {
		if b.isWanted(half) {
			b.send(x, half, try)
		}
	}
}

// retry sends sequences in smaller calls after the engine ran out of memory.
func (b *Batcher) retry(x *batchRun, part []sequence, try int, reason []byte) {
	tokens := sum(part)
	if !divisible(part, try) {
		if len(part) == 1 {
			x.short.unclear++
		} else {
			x.short.learn(tokens, minTokens)
		}
		b.meters.oomFailures.Inc()
		b.log.Warn("engine out of memory", "tokens", tokens, "sequences", len(part), "tries", try)
		const excerpt = 200
		b.fail(part, outOfMemory(tokens, try, string(bytes.ToValidUTF8(reason[:min(len(reason), excerpt)], nil))))
		return
	}
	unclear, cut := x.short.unclear, smaller(tokens, try)
	if x.short.limit == 0 || cut < x.short.limit {
		x.short.limit = cut
	}
	for rest := part; len(rest) > 0; {
		n := leading(rest, x.short.limit)
		if piece := rest[:n]; b.isWanted(piece) {
			b.meters.retried(sum(piece))
			b.send(x, piece, try+1)
		} else {
			x.short.unclear++
		}
		rest = rest[n:]
	}
	if x.short.unclear == unclear {
		x.short.learn(tokens, cut)
	}
}

func (b *Batcher) isWanted(part []sequence) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isWantedLocked(part)
}

// failUnsent fails the jobs of sequences whose call did not reach the engine.
func (b *Batcher) failUnsent(x *batchRun, part []sequence) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range part {
		if j := b.jobs[s.Request]; j != nil {
			b.failLocked(s.Request, lost(x.seen || j.runs > 1))
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

// deliver distributes an answer to the jobs. verbatim says that it is the answer to the only one, unchanged.
func (b *Batcher) deliver(part []sequence, answer []byte, verbatim bool) {
	found, err := readAnswer(answer, len(part))
	if err != nil {
		b.fail(part, badReply(err))
		return
	}
	values := make([][]float32, len(part))
	for i, e := range found {
		values[i], _ = e.values() // nil for unusable ones
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
				j.whole = answer
			}
			b.endLocked(j)
		}
	}
}
