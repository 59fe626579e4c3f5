package scheduling

import (
	"container/list"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"reveille/gateway/api"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// leaveFor bounds the last call of a group, which is made although its gate may be closing.
const leaveFor = time.Second

// group is all requests of this gateway for one model, served by one goroutine (serve). Fields are guarded by Gate.mu,
// but for those that never change.
type group struct {
	model  string
	shared bool          // found by model in Gate.groups; a management call's group is its own
	bell   chan struct{} // capacity 1: something changed
	queued chan struct{} // closed by serve at the first ticket

	waiters *list.List // of *Waiter, in order of arrival
	keep    bool       // the load is to go on when all have left
	start   time.Time  // until then the group also lives without a waiter, to get a load started; zero: no such duty
	attempt loadAttempt
	news    inbox
}

// inbox holds the last word about a ticket until the group reads it. Guarded by Gate.mu.
type inbox struct {
	standing *state.TicketStatus
	err      error // the store did not answer
}

// put stores a ticket's state; an outcome is never overwritten by an intermediate one.
func (b *inbox) put(s state.TicketStatus) {
	if b.standing == nil || b.standing.Ticket != s.Ticket || !b.standing.Record.Done() {
		b.standing = &s
	}
	b.err = nil
}

func (gr *group) notify() {
	select {
	case gr.bell <- struct{}{}:
	default:
	}
}

// wait returns when the group is notified, or after d if d is not negative.
func (gr *group) wait(d time.Duration) {
	if d < 0 {
		<-gr.bell
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-gr.bell:
	case <-t.C:
	}
}

// serve carries out what the attempt decides until the group has its outcome or nobody wants one.
func (g *Gate) serve(gr *group) {
	defer g.work.Done()
	v := step{do: ask}
	for {
		if v.leave != "" {
			g.leave(v.leave, false)
			v.leave = ""
		}
		if again, over := g.onEmpty(gr); over {
			return
		} else if again {
			v = step{do: ask}
		}
		switch v.do {
		case rest:
			gr.wait(-1)
			v = g.processInbox(gr)
		case ask:
			if d := time.Until(v.at); d > 0 {
				gr.wait(d)
				continue
			}
			v = g.ask(gr)
		case finish:
			var over bool
			if v, over = g.finish(gr, v); over {
				return
			}
		}
	}
}

// onEmpty ends a group that nobody waits in: it leaves its ticket and goes. While it leaves, the group stays where new
// requests find it, so that a newcomer never attaches to the ticket that is being left: then again is true and the
// group asks anew.
func (g *Gate) onEmpty(gr *group) (again, over bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for first := true; ; first = false {
		if !gr.start.IsZero() && (gr.attempt.ticket != "" || g.closed || time.Now().After(gr.start)) {
			gr.start = time.Time{}
		}
		if gr.waiters.Len() > 0 || !gr.start.IsZero() {
			return !first, false
		}
		ticket, keep := gr.attempt.ticket, gr.keep
		if ticket == "" {
			g.forgetLocked(gr)
			return false, true
		}
		g.dropTicketLocked(gr)
		gr.keep = false
		g.mu.Unlock()
		g.leave(ticket, keep)
		g.mu.Lock()
	}
}

// leave gives up this gateway's place in a ticket. If the call fails, the place's lease ends by itself.
func (g *Gate) leave(ticket string, keep bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.life), leaveFor)
	defer cancel()
	if err := g.store.Leave(ctx, g.id, ticket, keep); err != nil {
		g.log.Debug("could not leave ticket", "ticket", ticket, "error", err)
	}
}

// ask makes one attempt to place and acquire. It is the only caller of Store.Acquire for the group.
func (g *Gate) ask(gr *group) step {
	s, host, v, err := g.place(gr)
	if err != nil {
		return g.acquired(gr, state.Acquired{}, err)
	}
	if v != nil {
		return *v
	}
	g.mu.Lock()
	want := gr.attempt.want(g.id, host, s.RevisionOf(host, gr.model), gr.waiters.Len() == 0)
	if h := s.Hosts[host]; gr.attempt.stale >= strictTries && h != nil && h.State != policy.Lost {
		want.HostState, want.Revision = h.State, s.RevisionOf("", gr.model)
	}
	g.mu.Unlock()
	got, err := g.store.Acquire(g.life, want)
	if want.Background {
		g.renewNow() // somebody may have come meanwhile who has no place in the ticket yet
	}
	if errors.Is(err, state.ErrStale) {
		g.mu.Lock()
		gr.attempt.changed = append(gr.attempt.changed, host)
		g.mu.Unlock()
	}
	return g.acquired(gr, got, err)
}

// strictTries is how many placements in a row may be refused because their host has changed. Then the host need only be in the
// same state: what has to go for a load is its runner's decision anyway.
const strictTries = 2

// placeTries is how many hosts of a large pool are looked at for one decision.
const placeTries = 3

// place chooses a host by what was just read: uses of models raise no event, so the mirror may lag and show the wrong victim as
// the least recently used. Of a large pool only the chosen host is read anew, and then the choice is made again; what it
// refuses or postpones, or changes its mind about, it decides with the whole pool in view. A step is returned in place of a host.
func (g *Gate) place(gr *group) (s *state.Snapshot, host string, v *step, err error) {
	if s = g.mirror.Snapshot(); s.Large() {
		host, v = g.chooseOn(s, gr)
		for range placeTries {
			if v != nil || host == "" {
				break
			}
			if s, err = g.mirror.RefreshHosts(g.life, []string{host}, gr.model); err != nil {
				return nil, "", nil, err
			}
			read := host
			if host, v = g.chooseOn(s, gr); host == read && v == nil {
				return s, host, nil, nil
			}
		}
		if v != nil && v.do != ask && v.err == nil {
			return s, host, v, nil
		}
	}
	if s, err = g.mirror.Refresh(g.life); err != nil {
		return nil, "", nil, err
	}
	host, v = g.chooseOn(s, gr)
	return s, host, v, nil
}

// chooseOn makes the attempt's choice on a snapshot.
func (g *Gate) chooseOn(s *state.Snapshot, gr *group) (host string, v *step) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recovery.see(s, now)
	if g.recovery.waiting(now) {
		return "", &step{do: ask, at: now.Add(staleMost)}
	}
	shunned, retry := g.shunned.open(now)
	return gr.attempt.chooseHost(s, g.catalog(), shunned, retry)
}

func (g *Gate) acquired(gr *group, got state.Acquired, err error) step {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && err != nil && !errors.Is(err, state.ErrUnavailable) {
		return fail(api.GoingAway())
	}
	old := gr.attempt.ticket
	v := gr.attempt.onAcquired(now, got, err)
	if v.do == ask && !v.at.IsZero() {
		v.at = now.Add(jitter(v.at.Sub(now)))
	}
	if t := gr.attempt.ticket; t != old && t != "" {
		delete(g.tickets, old)
		g.tickets[t] = gr
		if !gr.start.IsZero() {
			gr.start, gr.keep = time.Time{}, true
		}
		select {
		case <-gr.queued:
		default:
			close(gr.queued)
		}
		g.log.Debug("waits for a ticket", "model", gr.model, "ticket", t, "host", got.Host, "status", got.Status)
	}
	if got.WakeToken != "" {
		g.wakeLocked(got.Host, got.WakeToken)
	}
	return v
}

// jitter varies a pause by up to half its length, so that gateways that were refused together do not retry together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// processInbox reads the inbox and looks at the mirror.
func (g *Gate) processInbox(gr *group) step {
	now, snapshot := time.Now(), g.mirror.Snapshot()
	g.mu.Lock()
	defer g.mu.Unlock()
	ticket := gr.attempt.ticket
	v := step{do: rest}
	switch news := gr.news; {
	case news.standing != nil:
		v = gr.attempt.onTicketState(now, *news.standing)
	case news.err != nil:
		v = gr.attempt.onStoreError(now, news.err)
	}
	gr.news = inbox{}
	if v.do == rest {
		shunned, _ := g.shunned.open(now)
		v = gr.attempt.onSnapshot(now, snapshot, g.catalog(), shunned)
	}
	if gr.attempt.ticket != ticket {
		delete(g.tickets, ticket)
	}
	return v
}

// finish hands the outcome to all waiters, first come first served. A ready model whose host has no address any more is
// asked for anew.
func (g *Gate) finish(gr *group, v step) (next step, over bool) {
	var r Endpoint
	if v.err == nil {
		ok := false
		if r, ok = g.endpointOn(v.host, gr.model); !ok {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.dropTicketLocked(gr)
			return gr.attempt.restart(time.Now()), false
		}
	}
	var err error
	if v.err != nil {
		err = v.err
		g.log.Info("cold request refused", "model", gr.model, "code", v.err.Code, "error", v.err)
	}
	info := LoadInfo{Ticket: v.record.ID, Cold: v.record.Fields["cold"] == "1", LoadMS: v.record.LoadMS}
	if v.record.Evicted != "" {
		info.Evicted = strings.Split(v.record.Evicted, ",")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	info.Waiters = gr.waiters.Len()
	g.finishAllLocked(gr, r, info, err)
	g.dropTicketLocked(gr)
	g.forgetLocked(gr)
	return step{}, true
}

func (g *Gate) finishAllLocked(gr *group, r Endpoint, info LoadInfo, err error) {
	for e := gr.waiters.Front(); e != nil; e = gr.waiters.Front() {
		g.finishLocked(e.Value.(*Waiter), r, info, err)
	}
}

func (g *Gate) dropTicketLocked(gr *group) {
	delete(g.tickets, gr.attempt.ticket)
	gr.attempt.ticket, gr.attempt.host, gr.attempt.state, gr.attempt.moving = "", "", "", ""
	gr.attempt.round++
	gr.news = inbox{}
}

// forgetLocked removes a finished group from the gate.
func (g *Gate) forgetLocked(gr *group) {
	delete(g.all, gr)
	if gr.shared {
		delete(g.groups, gr.model)
	}
}

// endpointOn is the endpoint of a model on a host that just loaded it, which the mirror's model records may not show yet.
func (g *Gate) endpointOn(host, model string) (Endpoint, bool) {
	h := g.mirror.Snapshot().Hosts[host]
	if h == nil || h.Addr == "" {
		s, err := g.mirror.RefreshHosts(g.life, []string{host})
		if err != nil || s.Hosts[host] == nil || s.Hosts[host].Addr == "" {
			return Endpoint{}, false
		}
		h = s.Hosts[host]
	}
	return Endpoint{Host: host, Addr: h.Addr, Generation: h.Generation, flow: g.flows.of(host, model)}, true
}
