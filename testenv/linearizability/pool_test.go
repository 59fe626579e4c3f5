package linearizability

import (
	"context"
	"maps"
	"slices"

	"reveille/infra/state"
)

// host is the one host of each pool, and slots its limit.
const (
	host  = "h"
	slots = 2
)

// operation is one call to the store.
type operation interface {
	// call makes the call.
	call(ctx context.Context, s *state.Store) (answer, error)
	// apply does to the pool what the call does, and returns what its caller is told. Numbers that are given out again
	// are unheard.
	apply(p *pool, at moment) answer
}

// answer is what a call told its caller. Fields that an operation does not tell are zero.
type answer struct {
	verdict    string // ok, created, fenced, …
	state      string // of the host or the ticket
	records    string // model=state, … separated by spaces
	ticket     uint64
	fence      uint64 // a generation, or the token of a wake duty or a sleep
	revision   uint64
	generation uint64
	sleep      uint64
	queue      []uint64
	position   int
	rest       string // the queue, or the gateways that wait
	active     string // active_ms, which a sweep hands on; not compared
}

// moment is when a call is applied.
type moment struct {
	now int64  // the scripts' clock in ms
	nth uint64 // number of the call in its history
}

// unheard marks a number whose value nobody was told yet. The rest of it names the call that drew it.
const unheard = 1 << 63

// pool is the state of one pool that takes one call at a time. A call is applied to a copy, and once that is done the
// copy is not changed any more, so that pools may share what they hold.
type pool struct {
	state      string // of the host; "" nobody spoke of it
	generation uint64 // 0 none
	seen       int64
	noticed    int64             // when missing beats were noticed, 0 not
	records    map[string]string // state by model: the slots in use
	loading    uint64            // ticket of the load under way, 0 none
	queue      []uint64
	tickets    []ticket // all that ever were
	power      lease    // the duty to wake, or the right to turn off
	sleep      uint64   // token of the sleep that is not over, 0 none
	boot       string   // of the runner that registered last
	stopping   bool     // a sweep began to turn the machine off, and has not said how that ended
	left       int64    // when a sweep left that before it was known, 0 not
	woken      int64    // when the last wake began
	failed     int64    // when one failed last
	listed     bool     // the pool has the host
	revision   uint64

	highestFence    uint64 // that anybody was told
	highestRevision uint64
	least           uint64 // the revision, while it is unheard
	restored        bool   // by a failover; the runner has not registered since

	lagging  bool    // a replica lags
	survives uint64  // the revision that it will have when it is promoted
	past     []*pool // which may be that of these, oldest first
}

// ticket is a load.
type ticket struct {
	id         uint64
	model      string
	state      string
	operation  string
	background bool
	waiters    map[string]int64 // end of the lease by gateway; replaced, never changed
}

// lease is the zero value when there is none.
type lease struct {
	owner string
	token uint64
	end   int64
}

func (p *pool) clone() *pool {
	c := *p
	c.records = maps.Clone(p.records)
	c.queue = slices.Clone(p.queue)
	c.tickets = slices.Clone(p.tickets)
	return &c
}

// draw returns a fence above all others: the call's first or second, which is 0 or 1.
func draw(at moment, which uint64) uint64 { return unheard | at.nth<<1 | which }

// changed raises the revision.
func (p *pool) changed(at moment) {
	p.revision = unheard | at.nth
	p.least = max(p.highestRevision+1, uint64(at.now)*1000)
}

// tells reports whether the caller may have been told got where the pool says want, and learns numbers from it.
func (p *pool) tells(want, got answer, at moment) bool {
	if want.verdict != got.verdict || want.state != got.state || want.records != got.records || want.position != got.position ||
		want.rest != got.rest || len(want.queue) != len(got.queue) {
		return false
	}
	for i := range want.queue {
		if !p.tellsFence(want.queue[i], got.queue[i], at) {
			return false
		}
	}
	return p.tellsRevision(want.revision, got.revision) &&
		p.tellsFence(want.ticket, got.ticket, at) && p.tellsFence(want.fence, got.fence, at) &&
		p.tellsFence(want.generation, got.generation, at) && p.tellsFence(want.sleep, got.sleep, at)
}

// tellsFence: one that this call drew must be above all that were told before, and not behind the clock. One of a call
// whose reply was lost may be told late, by another call.
func (p *pool) tellsFence(want, got uint64, at moment) bool {
	drawn := want == draw(at, 0) || want == draw(at, 1)
	switch {
	case want&unheard == 0:
		return want == got
	case got == 0, drawn && (got <= p.highestFence || got < uint64(at.now)*1000):
		return false
	}
	p.highestFence = max(p.highestFence, got)
	p.rename(want, got)
	if !drawn { // the past may have it too
		p.past = slices.Clone(p.past)
		for i, old := range p.past {
			p.past[i] = old.clone()
			p.past[i].rename(want, got)
		}
	}
	return true
}

// rename gives an unheard fence its value.
func (p *pool) rename(unheard, value uint64) {
	for _, n := range []*uint64{&p.generation, &p.loading, &p.sleep, &p.power.token} {
		if *n == unheard {
			*n = value
		}
	}
	for i, n := range p.queue {
		if n == unheard {
			p.queue[i] = value
		}
	}
	if t := p.ticket(unheard); t != nil {
		t.id = value
	}
}

// tellsRevision: one that was not told yet must be above all that were told before it was made, and not behind the clock.
func (p *pool) tellsRevision(want, got uint64) bool {
	switch {
	case want&unheard == 0:
		return want == got
	case got < p.least:
		return false
	}
	p.highestRevision = max(p.highestRevision, got)
	p.revision = got
	var past []*pool
	for _, old := range p.past {
		switch {
		case old.revision == want && got == p.survives:
			c := *old
			c.revision = got
			past = append(past, &c)
		case old.revision == want:
		case old.revision == p.survives, got > p.survives: // an older one that is unheard is below got
			past = append(past, old)
		}
	}
	p.past = past
	return true
}

// pending tells the state of a ticket, and awake that of a host.
func pending(state string) bool { return state == "queued" || state == "loading" }
func awake(state string) bool   { return state == "ready" || state == "draining" }

// owner is the verdict on a write of a generation.
func (p *pool) owner(generation uint64) string {
	switch p.generation {
	case 0:
		return "unknown"
	case generation:
		return "ok"
	}
	return "fenced"
}

// overdue reports whether nothing was heard of an awake host for too long.
func (p *pool) overdue(at moment) bool { return at.now-p.seen > state.LostAfter.Milliseconds() }

// lost reports whether the host was overdue for long enough after that was noticed, and notices it.
func (p *pool) lost(at moment) bool {
	switch {
	case !p.overdue(at):
		return false
	case p.noticed == 0:
		p.noticed = at.now
		return false
	}
	return at.now-p.noticed > state.LostAfter.Milliseconds()
}

// forget takes away what only a running runner can hold.
func (p *pool) forget() {
	clear(p.records)
	p.requeue(0)
}

// requeue puts the load under way, but for ticket keep, back to the head of the queue.
func (p *pool) requeue(keep uint64) {
	if t := p.ticket(p.loading); t != nil && t.id != keep {
		t.state = "queued"
		p.queue = slices.Insert(p.queue, 0, t.id)
	}
	p.loading = 0
}

// ticket finds a ticket that may be changed, nil for none.
func (p *pool) ticket(id uint64) *ticket { return p.find(func(t *ticket) bool { return t.id == id }) }

// wanted finds the model's shared ticket without an outcome.
func (p *pool) wanted(model string) *ticket {
	return p.find(func(t *ticket) bool { return t.model == model && pending(t.state) })
}

func (p *pool) find(is func(*ticket) bool) *ticket {
	for i := range p.tickets {
		if is(&p.tickets[i]) {
			return &p.tickets[i]
		}
	}
	return nil
}

// end gives a ticket its outcome.
func (p *pool) end(t *ticket, outcome string) {
	t.state = outcome
	p.dequeue(t.id)
	if p.loading == t.id {
		p.loading = 0
	}
}

func (p *pool) dequeue(id uint64) {
	p.queue = slices.DeleteFunc(p.queue, func(q uint64) bool { return q == id })
}
