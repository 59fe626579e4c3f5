package batch

import (
	"container/list"
	"time"
)

// A Priority orders requests. Lower ones are not starved: see packer.
type Priority uint8

// Priorities, highest first.
const (
	High Priority = iota
	Normal
	Low
	priorities
)

// ParsePriority reads the value of the x-priority header; anything unknown is Normal.
func ParsePriority(s string) Priority {
	switch s {
	case "high":
		return High
	case "low":
		return Low
	}
	return Normal
}

// A Rule says what set a batch's size.
type Rule string

// Rules.
const (
	RuleIdle  Rule = "idle"  // the engine was idle: the batch has everything that was waiting
	RuleFull  Rule = "full"  // n_batch, or the part that the engine's memory allows, is used up, or nothing waiting fits into the rest
	RuleRoom  Rule = "room"  // the rest of the context is used up
	RuleGroup Rule = "group" // the rest of the queue has other parameters and cannot share the call
)

const (
	// gatherShare bounds the wait for the clients of a shared batch to return, as a share of the batch's duration.
	gatherShare = 8
	// maxGather bounds the same wait absolutely.
	maxGather = 5 * time.Millisecond
	// gatherPause is how many batches skip that wait after a futile one.
	gatherPause = 8
	// maxSkips is how many batches may skip a lower priority before its oldest request goes first.
	maxSkips = 8
	// maxMisses bounds the search for a sequence that fits into the rest of a batch.
	maxMisses = 64
)

// A Request is the packer's view of a request.
type Request struct {
	Priority Priority
	Group    string // only requests of one group share an engine call
	Tokens   []int  // of each sequence, each between 1 and Limits.NUBatch; packer keeps the slice

	id      uint64
	next    int           // first sequence still waiting
	batch   uint64        // last batch it had a sequence in
	element *list.Element // in the queue of its priority
}

// An Item is one sequence of a batch.
type Item struct {
	Request uint64
	Index   int
	Tokens  int
}

// A Batch is one engine call to make. It takes up context until Done.
type Batch struct {
	ID       uint64
	Group    string
	Items    []Item // in round-robin order; sequences of one request in its order
	Tokens   int
	Requests int // different requests in it
	Rule     Rule

	// State when the batch was formed, without the batch itself.
	Pending  int // tokens that were waiting, including its own
	InFlight int
	Room     int

	began time.Time
}

// A packer decides which sequences go into which engine call and when. It is a pure state machine: it does no I/O,
// reads no clock and starts no goroutine. It is not safe for concurrent use.
//
// Its invariants:
//   - every sequence of a request that was added and not removed is in exactly one batch, in the request's order;
//   - a batch has at least one sequence and at most NBatch tokens, and the batches in flight have at most Context;
//   - a batch of several sequences has at most Ceiling tokens;
//   - while anything waits, a batch is in flight or Next names a moment at which there will be one.
//
// Order: requests of one priority take turns, a sequence each, so that a request of ten thousand texts and one of a single text
// are both in the next batch. A sequence that does not fit into a batch keeps its place. If the head of the queue does not fit
// into the context, everything waits. Higher priorities go first, but a lower one goes first after maxSkips batches without
// any of its sequences.
//
// Time: an idle engine is used at once. While a batch is in flight another starts only when it would be full, so that batches
// grow only by queueing. Clients that shared a batch tend to come back together: after such a batch the engine waits for them,
// for at most an eighth of the batch's duration. If fewer than half of them come, the next batches skip that wait. A request
// that was alone in its batch is never waited for.
type packer struct {
	limits  Limits
	delay   time.Duration
	ceiling ceiling

	queues   [priorities]list.List // of *Request
	byID     map[uint64]*Request
	skipped  [priorities]int // batches since the class had a sequence in one, while it waited
	pending  int             // tokens waiting
	inFlight int             // tokens in flight
	active   int             // batches in flight
	lastID   uint64
	since    time.Time // when the queue was last empty

	gatherTill time.Time
	gatherFor  int // requests to wait for
	skipGather int // batches left that skip the wait
}

// newPacker creates a packer; l must be valid. delay is how long the oldest request may wait for others while the
// engine is idle, usually 0.
func newPacker(l Limits, delay time.Duration) *packer {
	return &packer{limits: l, delay: delay, ceiling: newCeiling(l.NBatch), byID: map[uint64]*Request{}}
}

// Add queues a request under an unused id. It ignores a request without sequences.
func (f *packer) Add(id uint64, r *Request, now time.Time) {
	if len(r.Tokens) == 0 {
		return
	}
	r.id, r.next, r.batch = id, 0, 0
	if len(f.byID) == 0 {
		f.since = now
	}
	f.byID[id] = r
	for _, n := range r.Tokens {
		f.pending += n
	}
	r.element = f.queues[r.Priority].PushBack(r)
}

// Remove removes a request's waiting sequences from the queue and returns their number.
func (f *packer) Remove(id uint64) int {
	r := f.byID[id]
	if r == nil {
		return 0
	}
	n := len(r.Tokens) - r.next
	for _, t := range r.Tokens[r.next:] {
		f.pending -= t
	}
	f.queues[r.Priority].Remove(r.element)
	delete(f.byID, id)
	return n
}

// Done releases the room of a batch that ended now.
func (f *packer) Done(b *Batch, now time.Time) {
	f.inFlight -= b.Tokens
	f.active--
	if f.skipGather > 0 {
		f.skipGather--
		return
	}
	if b.Requests > 1 && f.active == 0 {
		f.gatherFor = b.Requests + len(f.byID)
		f.gatherTill = now.Add(min(now.Sub(b.began)/gatherShare, maxGather))
	}
}

// Succeeded records that the engine computed a batch in one call.
func (f *packer) Succeeded(b *Batch) { f.ceiling.succeeded(b.Tokens, b.Rule == RuleFull) }

// OutOfMemory records that calls of failed tokens or more ran out of memory and were split into calls of at most cut tokens. Do
// not report failures that a single sequence explains: they say nothing about other batches.
func (f *packer) OutOfMemory(failed, cut int) { f.ceiling.outOfMemory(failed, cut) }

// Ceiling returns the most tokens in a batch of several sequences: NBatch, or less if the engine's memory is too small.
func (f *packer) Ceiling() int { return f.ceiling.now }

// Pending returns the number of tokens waiting.
func (f *packer) Pending() int { return f.pending }

// InFlight returns the numbers of tokens and of batches in flight.
func (f *packer) InFlight() (tokens, batches int) { return f.inFlight, f.active }

// Next returns the batch to send now, or nil. With nil, again is when to ask again at the latest; the zero time means that only
// an Add or a Done can change the answer.
func (f *packer) Next(now time.Time) (b *Batch, again time.Time) {
	if len(f.byID) == 0 || f.active >= f.limits.active() {
		return nil, time.Time{}
	}
	full := f.pending >= f.ceiling.now
	switch {
	case f.active > 0:
		if !full {
			return nil, time.Time{}
		}
	case !full:
		if till := f.holdTill(now); till.After(now) {
			return nil, till
		}
	}
	if f.headWaits() {
		return nil, time.Time{}
	}
	return f.formBatch(now), time.Time{}
}

// holdTill returns the time until which an idle engine stays unused.
func (f *packer) holdTill(now time.Time) time.Time {
	var till time.Time
	if f.delay > 0 {
		till = f.since.Add(f.delay)
	}
	if !f.gatherTill.IsZero() && len(f.byID) < f.gatherFor {
		switch {
		case now.Before(f.gatherTill):
			till = later(till, f.gatherTill)
		case 2*len(f.byID) < f.gatherFor:
			f.skipGather = gatherPause
		}
	}
	return till
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// headWaits reports whether the head of the queue has to wait for room in the context.
func (f *packer) headWaits() bool {
	head := f.head(f.firstPriority())
	return head.Tokens[head.next] > f.limits.Context-f.inFlight
}

func (f *packer) head(p Priority) *Request { return f.queues[p].Front().Value.(*Request) }

// firstPriority returns the priority whose head goes first: the highest one waiting, unless a lower one was skipped too
// often.
func (f *packer) firstPriority() Priority {
	first := priorities
	for p := range priorities {
		if f.queues[p].Len() == 0 {
			continue
		}
		if f.skipped[p] >= maxSkips {
			return p
		}
		first = min(first, p)
	}
	return first
}

// formBatch packs a batch. REQUIRES: the queue is not empty and its head fits into the rest of the context.
func (f *packer) formBatch(now time.Time) *Batch {
	f.gatherTill = time.Time{}
	f.lastID++
	b := &Batch{ID: f.lastID, Pending: f.pending, InFlight: f.inFlight, Room: f.limits.Context - f.inFlight, began: now}
	first := f.firstPriority()
	head := f.head(first)
	capacity := max(min(f.ceiling.now, b.Room), head.Tokens[head.next]) // a sequence longer than the ceiling goes alone
	b.Group = head.Group
	b.Items = make([]Item, 0, min(len(f.byID), maxMisses))
	p := packing{f: f, b: b, left: capacity}
	var took [priorities]bool
	took[first] = p.take(&f.queues[first], head.element) // the head, before a higher class fills the batch
	for class := range priorities {
		took[class] = p.roundRobin(&f.queues[class]) || took[class]
	}
	for class := range priorities {
		if f.queues[class].Len() == 0 || took[class] {
			f.skipped[class] = 0
		} else {
			f.skipped[class]++
		}
	}
	f.pending -= b.Tokens
	f.inFlight += b.Tokens
	f.active++
	b.Requests = p.requests
	b.Rule = p.rule(capacity)
	return b
}

// packing is one batch in the making.
type packing struct {
	f          *packer
	b          *Batch
	left       int // tokens
	requests   int
	otherGroup bool // a sequence was left out because it is in another group
}

// roundRobin takes a sequence from each request of a queue in turn until nothing left fits. A request that did not fit
// keeps its place ahead of those that did.
func (p *packing) roundRobin(q *list.List) (took bool) {
	var kept *list.Element // the last that did not fit
	for missed := 0; p.left > 0 && missed < maxMisses; {
		e := q.Front()
		if kept != nil {
			e = kept.Next()
		}
		if e == nil {
			break
		}
		if p.take(q, e) {
			took = true
		} else {
			kept = e
			missed++
		}
	}
	return took
}

// take moves the next sequence of a request into the batch, and the request to the end of its queue, or out of the
// queue if nothing of it is left.
func (p *packing) take(q *list.List, e *list.Element) bool {
	r := e.Value.(*Request)
	if r.Group != p.b.Group {
		p.otherGroup = true
		return false
	}
	n := r.Tokens[r.next]
	if n > p.left {
		return false
	}
	p.b.Items = append(p.b.Items, Item{Request: r.id, Index: r.next, Tokens: n})
	p.b.Tokens += n
	p.left -= n
	if r.batch != p.b.ID {
		r.batch = p.b.ID
		p.requests++
	}
	if r.next++; r.next < len(r.Tokens) {
		q.MoveToBack(e)
	} else {
		q.Remove(e)
		delete(p.f.byID, r.id)
	}
	return true
}

// rule returns what limited the batch's size, given its capacity.
func (p *packing) rule(capacity int) Rule {
	switch {
	case len(p.f.byID) == 0:
		return RuleIdle
	case p.otherGroup:
		return RuleGroup
	case capacity < p.f.ceiling.now:
		return RuleRoom
	}
	return RuleFull
}
