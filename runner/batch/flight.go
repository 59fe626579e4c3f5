package batch

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"
)

// flight is a batch on its way. It holds copies of all it needs of the requests, which may end before it does.
type flight struct {
	batch  *Batch
	items  []Item  // those of one request stand together, in its order
	inputs []input // of items, parts of copied; not there while verbatim is
	head   parsed  // model and extra members of the call
	copied []byte
	// verbatim is the only request's own body, sent as it is.
	verbatim []byte
	ctx      context.Context
	cancel   context.CancelCauseFunc
}

// prepareLocked copies what a batch needs.
func (b *Batcher) prepareLocked(batch *Batch, now time.Time) *flight {
	x := &flight{batch: batch, items: batch.Items, copied: b.buffers.take()}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	b.air[x] = struct{}{}
	b.cfg.Meters.formed(batch, b.cfg.Limits)
	if b.log.Enabled(x.ctx, slog.LevelDebug) {
		b.log.Debug("embedding batch", "rule", string(batch.Rule), "tokens", batch.Tokens, "sequences", len(batch.Items),
			"requests", batch.Requests, "pending", batch.Pending, "in_flight", batch.InFlight, "room", batch.Room)
	}
	slices.SortStableFunc(x.items, func(p, q Item) int { return cmp.Compare(p.Request, q.Request) })
	first := b.jobs[x.items[0].Request]
	if batch.Requests == 1 && len(x.items) == len(first.inputs) {
		b.startedLocked(first, now)
		x.copied = append(x.copied, first.body...)
		x.verbatim = x.copied
		return x
	}
	size := len(first.model) + len(first.extra)
	for _, it := range x.items {
		j := b.jobs[it.Request]
		b.startedLocked(j, now)
		size += len(j.inputs[it.Index].raw)
	}
	x.copied = slices.Grow(x.copied, size)
	own := func(raw []byte) []byte {
		start := len(x.copied)
		x.copied = append(x.copied, raw...)
		return x.copied[start:]
	}
	if first.model != nil {
		x.head.model = own(first.model)
	}
	x.head.extra = own(first.extra)
	x.inputs = make([]input, len(x.items))
	for i, it := range x.items {
		x.inputs[i].raw = own(b.jobs[it.Request].inputs[it.Index].raw)
	}
	return x
}

func (b *Batcher) startedLocked(j *job, now time.Time) {
	if !j.started {
		j.started = true
		b.cfg.Meters.waited(now.Sub(j.entered))
	}
}

// fly carries a batch to its end and gives its room back.
func (b *Batcher) fly(x *flight) {
	defer b.flights.Done()
	b.send(x, 0, len(x.items), 1)
	x.cancel(nil)
	b.buffers.give(x.copied)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.air, x)
	now := time.Now()
	b.former.Done(x.batch, now)
	b.kickLocked(now, 0)
}

// send makes the call for the items from..to and delivers what comes of it. try counts the calls for them, from 1.
func (b *Batcher) send(x *flight, from, to, try int) {
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
	items := x.items[from:to]
	switch {
	case err != nil:
		b.fail(items, err)
	case status == 200:
		b.deliver(x, items, a)
	case status >= 500 && b.cfg.OutOfMemory(a.body):
		b.retry(x, from, to, try, a.body)
	case items[0].Request != items[len(items)-1].Request:
		b.isolate(x, from, to, try) // whose fault it is shows when each request goes by itself
	default:
		b.fail(items, &EngineError{Status: status, Body: bytes.Clone(a.body)})
	}
}

// isolate sends the items of each request by themselves.
func (b *Batcher) isolate(x *flight, from, to, try int) {
	for from < to {
		end := from + 1
		for end < to && x.items[end].Request == x.items[from].Request {
			end++
		}
		if b.wanted(x.items[from:end]) {
			b.send(x, from, end, try)
		}
		from = end
	}
}

// retry sends items for which the engine's memory was too small in smaller calls.
func (b *Batcher) retry(x *flight, from, to, try int, reason []byte) {
	if x.verbatim != nil { // its inputs are needed one by one now
		x.head.parse(x.verbatim)
		x.inputs, x.verbatim = x.head.inputs, nil
	}
	items := x.items[from:to]
	ends := halve(items, try)
	if ends == nil {
		tokens := sum(items)
		b.cfg.Meters.exhausted()
		b.log.Warn("engine out of memory", "tokens", tokens, "sequences", len(items), "tries", try)
		b.fail(items, outOfMemory(tokens, try, excerpt(reason)))
		return
	}
	base := from
	for _, end := range ends {
		end += base
		part := x.items[from:end]
		if b.wanted(part) {
			b.cfg.Meters.retried(sum(part))
			b.log.Debug("engine out of memory: smaller call", "tokens", sum(part), "sequences", len(part), "try", try+1)
			b.send(x, from, end, try+1)
		}
		from = end
	}
}

func (b *Batcher) wanted(items []Item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(items, func(it Item) bool { return b.jobs[it.Request] != nil })
}

// fail ends the jobs of items.
func (b *Batcher) fail(items []Item, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range items {
		b.failLocked(it.Request, err)
	}
}

// deliver gives the jobs their parts of an answer.
func (b *Batcher) deliver(x *flight, items []Item, a *answer) {
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
