package batch

import (
	"container/list"
	"time"
)

// A Priority orders requests.
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

// A Request is the packer's view of a request.
type Request struct {
	Priority Priority
	Group    string // only requests of one group share an engine call
	Tokens   []int  // of each sequence, each between 1 and Limits.NUBatch

	id      uint64
	next    int           // first sequence still waiting
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
	Items  []Item
	Tokens int
	// Full says that the ceiling is used up, not only the context.
	Full     bool
	InFlight int // tokens in flight besides its own
}

// A packer decides which sequences go into which engine call and when. It is a pure state machine: it does no I/O,
// reads no clock and starts no goroutine. It is not safe for concurrent use.
//
//   - Every sequence of a request that was added and not removed is in exactly one batch, in the request's order.
//   - A batch has at least one sequence and at most NBatch tokens, and the batches in flight have at most Context. A
//     batch of several sequences has at most as many tokens as the ceiling.
//   - While anything waits, a batch is in flight or Next names a moment at which there will be one.
//
// Requests of one priority take turns, a sequence each, so that a request of ten thousand texts and one of a single
// text are both in the next batch. A batch ends at the first sequence that does not fit, which is the first of the next
// batch. Higher priorities go first.
//
// An idle engine is used immediately. While a batch is in flight another starts only when it would be full, so that
// batches grow only by queueing.
type packer struct {
	limits  Limits
	delay   time.Duration
	ceiling ceiling

	queues   [priorities]list.List // of *Request
	byID     map[uint64]*Request
	pending  int       // tokens waiting
	inFlight int       // tokens in flight
	active   int       // batches in flight
	since    time.Time // when the queue was last empty
}

// newPacker creates a packer; l must be valid. delay is how long the oldest request may wait for others while the
// engine is idle, usually 0.
func newPacker(l Limits, delay time.Duration) *packer {
	return &packer{limits: l, delay: delay, ceiling: newCeiling(l.NBatch), byID: map[uint64]*Request{}}
}

// Add queues a request under an unused id.
func (f *packer) Add(id uint64, r *Request, now time.Time) {
	r.id = id
	if len(f.byID) == 0 {
		f.since = now
	}
	f.byID[id] = r
	for _, n := range r.Tokens {
		f.pending += n
	}
	r.element = f.queues[r.Priority].PushBack(r)
}

// Remove removes a request's waiting sequences from the queue.
func (f *packer) Remove(id uint64) {
	r := f.byID[id]
	if r == nil {
		return
	}
	for _, t := range r.Tokens[r.next:] {
		f.pending -= t
	}
	f.queues[r.Priority].Remove(r.element)
	delete(f.byID, id)
}

// Done releases the room of a batch that ended.
func (f *packer) Done(b *Batch) {
	f.inFlight -= b.Tokens
	f.active--
}

// Next returns the batch to send now, or nil. With nil, again is the latest time of the next call; the zero time means
// that only an Add or a Done can change the result.
func (f *packer) Next(now time.Time) (b *Batch, again time.Time) {
	if len(f.byID) == 0 || f.active >= f.limits.maxActive() {
		return nil, time.Time{}
	}
	if f.pending < f.ceiling.now {
		if f.active > 0 {
			return nil, time.Time{}
		}
		if until := f.since.Add(f.delay); until.After(now) {
			return nil, until
		}
	}
	head, room := f.head(), f.limits.Context-f.inFlight
	if head.Tokens[head.next] > room {
		return nil, time.Time{}
	}
	b = &Batch{InFlight: f.inFlight}
	capacity := max(min(f.ceiling.now, room), head.Tokens[head.next]) // a sequence longer than the ceiling goes alone
	for p := range priorities {
		if !f.fill(b, &f.queues[p], head.Group, capacity) {
			b.Full = capacity >= f.ceiling.now
			break
		}
	}
	f.pending -= b.Tokens
	f.inFlight += b.Tokens
	f.active++
	return b, time.Time{}
}

// head returns the request whose sequence goes first. The queue is not empty.
func (f *packer) head() *Request {
	for p := range f.queues {
		if e := f.queues[p].Front(); e != nil {
			return e.Value.(*Request)
		}
	}
	return nil
}

// fill takes a sequence from each request of a queue in turn. It returns false at the first that does not fit.
// Requests of other groups keep their places.
func (f *packer) fill(b *Batch, q *list.List, group string, capacity int) bool {
	for e := q.Front(); e != nil; {
		r, next := e.Value.(*Request), e.Next()
		if r.Group != group {
			e = next
			continue
		}
		n := r.Tokens[r.next]
		if b.Tokens+n > capacity {
			return false
		}
		b.Items = append(b.Items, Item{Request: r.id, Index: r.next, Tokens: n})
		b.Tokens += n
		if r.next++; r.next == len(r.Tokens) {
			q.Remove(e)
			delete(f.byID, r.id)
		} else {
			q.MoveToBack(e)
			if next == nil {
				next = e
			}
		}
		e = next
	}
	return true
}
