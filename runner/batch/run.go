package batch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"reveille/infra/relay"
)

// batchRun is a batch in flight: one engine call, or several if it is split. It holds copies of everything it needs
// from the requests, which may end before it does.
type batchRun struct {
	batch  *Batch
	items  []Item  // grouped by request, in the request's order
	inputs []input // of items, parts of copied; nil if verbatim is set
	head   parsed  // model and dimensions of the call
	copied []byte
	// verbatim is the body of the only request, sent unchanged.
	verbatim []byte
	// seen says that at least part of a call of this run reached the engine.
	seen bool
	// whole says that the engine computed all items in one call.
	whole  bool
	short  shortage
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// prepareLocked creates the run of a batch.
func (b *Batcher) prepareLocked(batch *Batch, now time.Time) *batchRun {
	x := &batchRun{batch: batch, items: batch.Items, copied: b.buffers.take()}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	b.inFlight[x] = struct{}{}
	b.meters.formed(batch, b.cfg.Limits)
	if b.log.Enabled(x.ctx, slog.LevelDebug) {
		b.log.Debug("embedding batch", "rule", string(batch.Rule), "tokens", batch.Tokens, "sequences", len(batch.Items),
			"requests", batch.Requests, "pending", batch.Pending, "in_flight", batch.InFlight, "room", batch.Room)
	}
	slices.SortStableFunc(x.items, func(p, q Item) int { return cmp.Compare(p.Request, q.Request) })
	first := b.jobs[x.items[0].Request]
	if batch.Requests == 1 && len(x.items) == len(first.inputs) {
		b.attachLocked(first, now)
		x.copied = append(x.copied, first.body...)
		x.verbatim = x.copied
		return x
	}
	size := len(first.model) + len(first.dimensions)
	for i, it := range x.items {
		j := b.jobs[it.Request]
		if i == 0 || x.items[i-1].Request != it.Request {
			b.attachLocked(j, now)
		}
		size += len(j.inputs[it.Index].raw)
	}
	x.copied = slices.Grow(x.copied, size)
	own := func(raw []byte) []byte {
		if raw == nil {
			return nil
		}
		start := len(x.copied)
		x.copied = append(x.copied, raw...)
		return x.copied[start:]
	}
	x.head.model, x.head.dimensions = own(first.model), own(first.dimensions)
	x.inputs = make([]input, len(x.items))
	for i, it := range x.items {
		x.inputs[i].raw = own(b.jobs[it.Request].inputs[it.Index].raw)
	}
	return x
}

// attachLocked records that a run sends sequences of a job.
func (b *Batcher) attachLocked(j *job, now time.Time) {
	if j.runs++; j.runs == 1 {
		b.meters.waited(now.Sub(j.entered))
	}
}

// execute sends a batch, delivers its answers and releases its share of the context.
func (b *Batcher) execute(x *batchRun) {
	defer b.runs.Done()
	b.send(x, 0, len(x.items), 1)
	x.cancel(nil)
	b.buffers.give(x.copied)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.inFlight, x)
	switch {
	case x.short.failed > 0:
		b.packer.OutOfMemory(x.short.failed, x.short.learned)
	case x.whole:
		b.packer.Succeeded(x.batch)
	}
	now := time.Now()
	b.packer.Done(x.batch, now)
	b.dispatchLocked(now, 0)
}

// send makes the call for items[from:to] and delivers the result. try starts at 1 and increases each time the call is
// split for lack of memory.
func (b *Batcher) send(x *batchRun, from, to, try int) {
	body := x.verbatim
	if body == nil {
		body = x.head.appendBody(b.buffers.take(), x.inputs[from:to])
		defer b.buffers.give(body)
	}
	a := &answer{body: b.buffers.take()}
	a.refs.Store(1)
	defer func() {
		if a.refs.Add(-1) == 0 {
			b.buffers.give(a.body)
		}
	}()
	var status int
	var err error
	status, a.body, err = b.cfg.Engine.Embed(x.ctx, body, a.body)
	if errors.Is(err, relay.ErrBroken) {
		b.awaitEngine(x.ctx)
	}
	seen := !unseen(err)
	x.seen = x.seen || seen
	items := x.items[from:to]
	short := err == nil && b.outOfMemory(status, a.body, items, try)
	if status != 200 && !short {
		x.short.unclear++
	}
	switch {
	case !seen:
		b.failUnsent(x, items)
	case err != nil:
		b.fail(items, err)
	case status == 200:
		x.whole = x.whole || len(items) == len(x.items)
		b.deliver(x, items, a)
	case short:
		b.retry(x, from, to, try, a.body)
	case blamesRequest(status) && items[0].Request != items[len(items)-1].Request:
		b.isolate(x, from, to, try)
	default:
		b.fail(items, &EngineError{Status: status, Body: bytes.Clone(a.body)})
	}
}

// awaitEngine waits until an engine whose connection broke during a call answers again or cannot be reached. A dying
// engine's connections close one by one, and a call sent on the last of them would be lost and could not be sent
// elsewhere.
func (b *Batcher) awaitEngine(ctx context.Context) {
	const most = 10 // tries
	for range most {
		if _, err := b.cfg.Engine.Tokens(ctx, []byte("a"), true); !errors.Is(err, relay.ErrBroken) {
			return
		}
	}
}

// blamesRequest reports whether a status may be one request's fault, so that the others may succeed without it.
func blamesRequest(status int) bool {
	switch status {
	case 401, 403, 408, 429: // caused by the runner or the engine's state
		return false
	}
	return status/100 == 4 || status == 500
}

// isolate sends items of several requests again, with half of the requests in each call, until only the requests at
// fault fail.
func (b *Batcher) isolate(x *batchRun, from, to, try int) {
	middle := from + firstHalf(x.items[from:to])
	for _, part := range [...][2]int{{from, middle}, {middle, to}} {
		if b.wanted(x.items[part[0]:part[1]]) {
			b.send(x, part[0], part[1], try)
		}
	}
}

// firstHalf returns the number of items in the first half of the requests. There must be at least two requests.
func firstHalf(items []Item) int {
	var starts []int // of every request but the first
	for i := 1; i < len(items); i++ {
		if items[i].Request != items[i-1].Request {
			starts = append(starts, i)
		}
	}
	return starts[len(starts)/2]
}

// retry sends items in smaller calls after the engine ran out of memory.
func (b *Batcher) retry(x *batchRun, from, to, try int, reason []byte) {
	if x.verbatim != nil { // its inputs are now needed one by one
		x.head.parse(x.verbatim)
		x.inputs, x.verbatim = x.head.inputs, nil
	}
	items := x.items[from:to]
	tokens := sum(items)
	if !divisible(items, try) {
		x.short.exhausted(items)
		b.meters.exhausted()
		b.log.Warn("engine out of memory", "tokens", tokens, "sequences", len(items), "tries", try)
		b.fail(items, outOfMemory(tokens, try, excerpt(reason)))
		return
	}
	unclear, cut := x.short.unclear, smaller(tokens, try)
	x.short.cut(cut)
	for from < to {
		end := from + leadingItems(x.items[from:to], x.short.limit)
		if part := x.items[from:end]; b.wanted(part) {
			b.meters.retried(sum(part))
			b.log.Debug("engine out of memory: smaller call", "tokens", sum(part), "sequences", len(part), "try", try+1)
			b.send(x, from, end, try+1)
		} else {
			x.short.unclear++
		}
		from = end
	}
	if x.short.unclear == unclear {
		x.short.learn(tokens, cut)
	}
}

func (b *Batcher) wanted(items []Item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(items, func(it Item) bool { return b.jobs[it.Request] != nil })
}

// failUnsent fails the jobs of items whose call did not reach the engine.
func (b *Batcher) failUnsent(x *batchRun, items []Item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range items {
		if j := b.jobs[it.Request]; j != nil {
			b.failLocked(it.Request, lost(x.seen || j.runs > 1))
		}
	}
}

// fail fails the jobs of items.
func (b *Batcher) fail(items []Item, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range items {
		b.failLocked(it.Request, err)
	}
}

// deliver distributes an answer to the jobs.
func (b *Batcher) deliver(x *batchRun, items []Item, a *answer) {
	found := make([][]byte, len(items))
	if err := readAnswer(a.body, found); err != nil {
		b.fail(items, badReply(err))
		return
	}
	bad := make([]bool, len(items))
	scratch := b.buffers.take()
	for i, e := range found {
		scratch, bad[i] = unusable(scratch, e)
	}
	b.buffers.give(scratch)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, it := range items {
		j := b.jobs[it.Request]
		if j == nil {
			continue
		}
		if bad[i] {
			b.failLocked(it.Request, badReply(errValues))
			continue
		}
		if j.results[it.Index] == nil {
			j.left--
		}
		j.results[it.Index] = found[i]
		j.keep(a)
		if j.left == 0 {
			if x.verbatim != nil {
				j.whole = a.body
			}
			b.endLocked(j)
		}
	}
}
