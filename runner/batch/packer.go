package batch

import (
	"container/list"
	"time"

	"reveille/infra/rpc"
)

// A queuedRequest is the packer's view of a request.
type queuedRequest struct {
	Priority rpc.Priority
	CallKey  string // only requests with equal keys share an engine call
	Tokens   []int  // of each sequence, each between 1 and Limits.NUBatch

	id      uint64
	next    int           // first sequence still waiting
	element *list.Element // in the queue of its priority
}

// An Item refers to one sequence of a batch.
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
	Full        bool
	OtherTokens int // tokens of other batches in flight
}

// A packer decides which sequences go into which engine call and when. It is a state machine: it does no I/O, reads
// no clock and starts no goroutine. It is not safe for concurrent use.
//
//   - Every sequence of a request that was added and not removed is in exactly one batch, in the request's order.
//   - A batch has at least one sequence and at most NBatch tokens, and the batches in flight have at most Context. A
//     batch of several sequences has at most as many tokens as the ceiling.
//   - While anything waits, a batch is in flight or Next names a moment at which there will be one.
//
// Requests of one priority take turns, a sequence each, so that a request of ten thousand texts and one of a single
// text are both in the next batch. A batch ends at the first sequence that does not fit, which keeps its place in the
// queue. Higher priorities go first.
//
// An idle engine is used immediately. While a batch is in flight another starts only when all waiting tokens together
// would fill it, so that batches grow only by queueing.
type packer struct {
	limits  Limits
	delay   time.Duration
	ceiling ceiling

	queues         [rpc.Priorities]list.List // of *queuedRequest
	byID           map[uint64]*queuedRequest
	pending        int // tokens waiting
	inFlightTokens int
	activeBatches  int
	since          time.Time // when the queue was last empty
}

// newPacker creates a packer; l must be valid. delay is how long the oldest request may wait for others while the
// engine is idle, usually 0.
func newPacker(l Limits, delay time.Duration) *packer {
	return &packer{limits: l, delay: delay, ceiling: newCeiling(l.NBatch), byID: map[uint64]*queuedRequest{}}
}

// Add queues a request under an unused id.
func (p *packer) Add(id uint64, r *queuedRequest, now time.Time) {
	r.id = id
	if len(p.byID) == 0 {
		p.since = now
	}
	p.byID[id] = r
	for _, n := range r.Tokens {
		p.pending += n
	}
	r.element = p.queues[r.Priority].PushBack(r)
}

// Remove removes a request's waiting sequences from the queue.
func (p *packer) Remove(id uint64) {
	r := p.byID[id]
	if r == nil {
		return
	}
	for _, t := range r.Tokens[r.next:] {
		p.pending -= t
	}
	p.queues[r.Priority].Remove(r.element)
	delete(p.byID, id)
}

// Done releases the room of a batch that ended.
func (p *packer) Done(b *Batch) {
	p.inFlightTokens -= b.Tokens
	p.activeBatches--
}

// Next returns the batch to send now, or nil. With nil, the caller must call Next again at due; the zero time means
// that only Add, Remove or Done can change the result.
func (p *packer) Next(now time.Time) (b *Batch, due time.Time) {
	if len(p.byID) == 0 || p.activeBatches >= p.limits.maxActive() {
		return nil, time.Time{}
	}
	if p.pending < p.ceiling.tokens {
		if p.activeBatches > 0 {
			return nil, time.Time{}
		}
		if until := p.since.Add(p.delay); until.After(now) {
			return nil, until
		}
	}
	head, room := p.head(), p.limits.Context-p.inFlightTokens
	if head.Tokens[head.next] > room {
		return nil, time.Time{}
	}
	b = &Batch{OtherTokens: p.inFlightTokens}
	capacity := max(min(p.ceiling.tokens, room), head.Tokens[head.next]) // a sequence longer than the ceiling goes alone
	for i := range p.queues {
		if !p.fill(b, &p.queues[i], head.CallKey, capacity) {
			b.Full = capacity >= p.ceiling.tokens
			break
		}
	}
	p.pending -= b.Tokens
	p.inFlightTokens += b.Tokens
	p.activeBatches++
	return b, time.Time{}
}

// head returns the request whose sequence goes first. The queue is not empty.
func (p *packer) head() *queuedRequest {
	for i := range p.queues {
		if e := p.queues[i].Front(); e != nil {
			return e.Value.(*queuedRequest)
		}
	}
	return nil
}

// fill takes a sequence from each request of a queue in turn. It returns false at the first that does not fit.
// Requests with another key keep their places.
func (p *packer) fill(b *Batch, q *list.List, callKey string, capacity int) bool {
	for e := q.Front(); e != nil; {
		r, next := e.Value.(*queuedRequest), e.Next()
		if r.CallKey != callKey {
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
			delete(p.byID, r.id)
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
