package linearizability

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"reveille/infra/state"
)

// acquire: a gateway wants a model loaded and attaches to the one ticket for it.
type acquire struct {
	Gateway    string
	Model      string
	Revision   uint64
	Background bool
	Operation  string
}

func (a acquire) call(ctx context.Context, s *state.Store) (answer, error) {
	got, err := s.Acquire(ctx, state.Want{
		Gateway: a.Gateway, Model: a.Model, Host: host, Revision: a.Revision, Unattended: a.Background, Operation: a.Operation,
	})
	if errors.Is(err, state.ErrStale) {
		return answer{verdict: "stale"}, nil
	}
	return answer{verdict: got.Status, ticket: number(got.Ticket), fence: number(got.WakeToken), position: got.Position, state: string(got.State)}, err
}

func (a acquire) apply(p *pool, at moment) answer {
	if t := p.find(func(t *ticket) bool { return t.operation == a.Operation }); t != nil {
		return a.attach(p, t.id, "attached", at)
	}
	if p.records[a.Model] == "loaded" && p.state == "ready" && !p.overdue(at) {
		return answer{verdict: "loaded"}
	}
	if t := p.wanted(a.Model); t != nil {
		return a.attach(p, t.id, "attached", at)
	}
	if a.Revision != p.revision {
		return answer{verdict: "stale"}
	}
	id := draw(at, 0)
	p.tickets = append(p.tickets, ticket{id: id, model: a.Model, state: "queued", operation: a.Operation, background: a.Background})
	p.queue = append(p.queue, id)
	p.listed = true
	p.changed(at)
	return a.attach(p, id, "created", at)
}

func (a acquire) attach(p *pool, id uint64, verdict string, at moment) answer {
	out := answer{verdict: verdict, ticket: id}
	t := p.ticket(id)
	if pending(t.state) {
		if a.Background {
			t.background = true
		} else {
			t.wait(a.Gateway, at)
		}
		out.fence = p.duty(a.Gateway, at)
	}
	out.state, out.position = t.state, slices.Index(p.queue, id)+1
	return out
}

// renew: a gateway keeps its place in a ticket and reads how it stands.
type renew struct {
	Gateway string
	Ticket  uint64
}

func (r renew) call(ctx context.Context, s *state.Store) (answer, error) {
	got, err := s.Renew(ctx, r.Gateway, state.Renewal{Ticket: id(r.Ticket)})
	switch {
	case err != nil:
		return answer{}, err
	case len(got) != 1:
		return answer{}, fmt.Errorf("%d statuses of one ticket", len(got))
	case !got[0].Found:
		return answer{verdict: "gone"}, nil
	}
	return answer{verdict: "found", fence: number(got[0].WakeToken), position: got[0].Position, state: string(got[0].Record.State)}, nil
}

func (r renew) apply(p *pool, at moment) answer {
	t := p.ticket(r.Ticket)
	if t == nil {
		return answer{verdict: "gone"}
	}
	out := answer{verdict: "found"}
	if pending(t.state) {
		t.wait(r.Gateway, at)
		out.fence = p.duty(r.Gateway, at)
		out.position = slices.Index(p.queue, t.id) + 1
	}
	out.state = t.state
	return out
}

// leave: a gateway gives up its place; Keep makes the load go on without a waiter.
type leave struct {
	Gateway string
	Ticket  uint64
	Keep    bool
}

func (l leave) call(ctx context.Context, s *state.Store) (answer, error) {
	return verdict(s.ReleaseTicket(ctx, l.Gateway, id(l.Ticket), l.Keep))
}

func (l leave) apply(p *pool, at moment) answer {
	if t := p.ticket(l.Ticket); t != nil && pending(t.state) {
		t.waiters = maps.Clone(t.waiters)
		delete(t.waiters, l.Gateway)
		t.background = t.background || l.Keep
		if t.state == "queued" && !t.background && t.live(at) == 0 {
			p.end(t, "dropped")
			p.changed(at)
		}
	}
	return answer{verdict: "ok"}
}

// begin: a runner takes a ticket out of its queue.
type begin struct {
	Generation uint64
	Ticket     uint64
}

func (b begin) call(ctx context.Context, s *state.Store) (answer, error) {
	return verdict(s.Begin(ctx, host, b.Generation, id(b.Ticket), state.NPUSeat{}))
}

func (b begin) apply(p *pool, at moment) answer {
	o := p.owner(b.Generation)
	if o == "ok" && !awake(p.state) {
		o = "unknown"
	}
	t := p.ticket(b.Ticket)
	switch {
	case o != "ok":
		return answer{verdict: o}
	case t == nil || !pending(t.state):
		return answer{verdict: "gone"}
	case t.state == "loading":
		return answer{verdict: "ok"}
	case p.loading != 0:
		return answer{verdict: "busy"}
	case !t.background && t.live(at) == 0:
		p.end(t, "dropped")
		p.changed(at)
		return answer{verdict: "dropped"}
	}
	p.dequeue(t.id)
	p.loading, t.state = t.id, "loading"
	p.changed(at)
	return answer{verdict: "ok"}
}

// finish: a runner ends a ticket and hears who still waits for it.
type finish struct {
	Generation uint64
	Ticket     uint64
	Failed     bool
}

func (f finish) call(ctx context.Context, s *state.Store) (answer, error) {
	waiting, err := s.Finish(ctx, host, f.Generation, id(f.Ticket), state.Outcome{Failed: f.Failed})
	out, err := verdict(err)
	if out.verdict == "ok" {
		slices.Sort(waiting)
		out.rest = strings.Join(waiting, " ")
	}
	return out, err
}

func (f finish) apply(p *pool, at moment) answer {
	if o := p.owner(f.Generation); o != "ok" {
		return answer{verdict: o}
	}
	t := p.ticket(f.Ticket)
	if t == nil || !pending(t.state) {
		return answer{verdict: "gone"}
	}
	t.live(at)
	outcome := "ready"
	if f.Failed {
		outcome = "failed"
	}
	p.end(t, outcome)
	p.changed(at)
	return answer{verdict: "ok", rest: strings.Join(slices.Sorted(maps.Keys(t.waiters)), " ")}
}

// wait gives a gateway a place until the end of a lease.
func (t *ticket) wait(gateway string, at moment) {
	t.waiters = maps.Clone(t.waiters)
	if t.waiters == nil {
		t.waiters = map[string]int64{}
	}
	t.waiters[gateway] = at.now + state.WaiterLease.Milliseconds()
}

// live drops the waiters whose lease is over and counts the others.
func (t *ticket) live(at moment) int {
	t.waiters = maps.Clone(t.waiters)
	maps.DeleteFunc(t.waiters, func(_ string, end int64) bool { return end < at.now })
	return len(t.waiters)
}

// id and number turn fences into the text that the store takes and gives, and back. None is "" and 0; so is what is no
// number, which no ticket has.

func id(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

func number(id string) uint64 {
	n, _ := strconv.ParseUint(id, 10, 64)
	return n
}
