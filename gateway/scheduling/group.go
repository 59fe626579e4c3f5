package scheduling

import (
	"container/list"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// releaseTimeout bounds a group's last call, which it makes even while its gate is closing.
const releaseTimeout = time.Second

// group is the requests of this gateway that share one load of a model: all requests for it, or one management call.
// One goroutine serves it (serve). Gate.mu guards the fields that change.
type group struct {
	model  string
	began  time.Time
	wakeup chan struct{} // capacity 1: something changed
	queued chan struct{} // closed by serve at the first ticket

	waiters     *list.List // of *Waiter, in order of arrival
	waiting     int        // requests that wait for its ticket at all gateways, when it was last renewed
	keep        bool       // the load continues when all have left
	startUntil  time.Time  // if set, the group stays even without waiters, until its load has a ticket or this time has come
	acquisition acquisition
	stages      []StageChange
	inbox       inbox
}

// inbox holds the newest state of a ticket until the group reads it. Guarded by Gate.mu.
type inbox struct {
	status *state.TicketStatus
	err    error // the store did not respond
}

// put stores a ticket's state; an intermediate state never overwrites an outcome.
func (b *inbox) put(s state.TicketStatus) {
	if b.status == nil || b.status.Ticket != s.Ticket || !b.status.Record.Done() {
		b.status = &s
	}
	b.err = nil
}

func (gr *group) notify() {
	select {
	case gr.wakeup <- struct{}{}:
	default:
	}
}

// wait returns when the group is notified, or after d.
func (gr *group) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-gr.wakeup:
	case <-t.C:
	}
}

// serve executes the acquisition's actions until the group has its outcome or nobody wants one.
func (g *Gate) serve(gr *group) {
	defer g.work.Done()
	v := nextAction{do: actionPlace}
	for {
		if v.release != "" {
			g.releaseTicket(v.release, false)
			v.release = ""
		}
		if again, over := g.endIfEmpty(gr); over {
			return
		} else if again {
			v = nextAction{do: actionPlace}
		}
		switch v.do {
		case actionWait:
			<-gr.wakeup
			g.raise(gr)
			v = g.processInbox(gr)
		case actionPlace:
			if d := time.Until(v.at); d > 0 {
				gr.wait(d)
				continue
			}
			v = g.placeAndAcquire(gr) // also handles actionAcquire
		case actionFinish:
			var over bool
			if v, over = g.finish(gr, v); over {
				return
			}
		}
	}
}

// endIfEmpty ends a group without waiters: it releases its ticket. Meanwhile new requests still find the group, so that
// none attaches to the ticket being released. If one arrived, again is true and the group asks for a new ticket.
func (g *Gate) endIfEmpty(gr *group) (again, over bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for first := true; ; first = false {
		if !gr.startUntil.IsZero() && (gr.acquisition.ticket != "" || g.closed || time.Now().After(gr.startUntil)) {
			gr.startUntil = time.Time{}
		}
		if gr.waiters.Len() > 0 || !gr.startUntil.IsZero() {
			return !first, false
		}
		ticket, keep := gr.acquisition.ticket, gr.keep
		if ticket == "" {
			g.removeGroupLocked(gr)
			return false, true
		}
		g.dropTicketLocked(gr)
		gr.keep = false
		g.mu.Unlock()
		g.releaseTicket(ticket, keep)
		g.mu.Lock()
	}
}

// releaseTicket removes this gateway from a ticket's waiters. If the call fails, its lease on the ticket ends on its
// own.
func (g *Gate) releaseTicket(ticket string, keep bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.life), releaseTimeout)
	defer cancel()
	if err := g.store.ReleaseTicket(ctx, g.id, ticket, keep); err != nil {
		g.log.Debug("could not leave ticket", "ticket", ticket, "error", err)
	}
}

// placeAndAcquire places the model and acquires a ticket once.
func (g *Gate) placeAndAcquire(gr *group) nextAction {
	g.readSaved(gr)
	s, v, err := g.place(gr)
	if err != nil {
		return g.onAcquired(gr, state.Acquired{}, err)
	}
	if v.do != actionAcquire {
		return v
	}
	host := v.host
	g.mu.Lock()
	gr.acquisition.raised = false
	want := gr.acquisition.acquireRequest(g.id, host, s.RevisionOf(host, gr.model), gr.waiters.Len() == 0)
	if h := s.Hosts[host]; gr.acquisition.stale >= strictTries && h != nil && h.State != policy.Lost {
		want.HostState, want.Revision = h.State, s.RevisionOf("", gr.model) // of the model alone
	}
	g.mu.Unlock()
	got, err := g.store.Acquire(g.life, want)
	if want.Unattended {
		g.renewNow() // a waiter that arrived meanwhile may not be in the ticket yet
	}
	if errors.Is(err, state.ErrStale) {
		g.mu.Lock()
		gr.acquisition.changedHosts = append(gr.acquisition.changedHosts, host)
		g.mu.Unlock()
	}
	return g.onAcquired(gr, got, err)
}

// raise attaches the group to its queued ticket again if a request with a higher priority has joined.
func (g *Gate) raise(gr *group) {
	g.mu.Lock()
	a := &gr.acquisition
	due, want := a.raised && a.state == state.TicketQueued, state.Want{Gateway: g.id, Model: a.model, Priority: a.priority}
	a.raised = a.raised && a.ticket == ""
	g.mu.Unlock()
	if !due {
		return
	}
	got, err := g.store.Acquire(g.life, want)
	if err != nil {
		g.log.Debug("a load was not given a higher priority", "model", gr.model, "error", err)
	}
	g.wake(got.Host, got.WakeToken)
}

// readSaved has the acquisition prefer the hosts with saved conversations of the model, if there is a choice of hosts.
// It asks the store once; without a response there is no preference.
func (g *Gate) readSaved(gr *group) {
	m, ok := g.catalog().Model(gr.model)
	if gr.acquisition.saved != nil || !ok || m.Type != policy.LLM || m.Conversations == catalog.ShareNone || len(g.mirror.Snapshot().Hosts) < 2 {
		return
	}
	found, err := g.store.Conversations(g.life, gr.model)
	if err != nil {
		g.log.Debug("saved conversations are not known", "model", gr.model, "error", err)
	}
	saved := make(map[string]int64, len(found))
	for host, c := range found {
		saved[host] = c.Tokens
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	gr.acquisition.saved = saved
}

// strictTries is how many placements in a row can be refused because their host has changed. After that the host only
// needs to be in the same state, because the runner decides what to evict anyway.
const strictTries = 2

// placeTries is how many hosts of a large pool are read for one decision.
const placeTries = 3

// place chooses a host from fresh data: uses of models raise no event, so the mirror may lag and show the wrong model
// as the least recently used. In a large pool it refreshes only the chosen host and chooses again; it refreshes the
// whole pool to refuse or postpone, or when the choice keeps changing. The action is one of chooseHost's.
func (g *Gate) place(gr *group) (s *state.Snapshot, v nextAction, err error) {
	if s = g.mirror.Snapshot(); s.Large() {
		v = g.chooseHostIn(s, gr, "")
		for range placeTries {
			if v.do != actionAcquire || v.host == "" {
				break
			}
			if s, err = g.mirror.RefreshHosts(g.life, []string{v.host}, gr.model); err != nil {
				return nil, v, err
			}
			refreshed := v.host
			if v = g.chooseHostIn(s, gr, refreshed); v.do == actionAcquire && v.host == refreshed {
				return s, v, nil
			}
		}
		if v.do == actionWait || v.do == actionFinish && v.err == nil {
			return s, v, nil
		}
	}
	if s, err = g.mirror.Refresh(g.life); err != nil {
		return nil, v, err
	}
	return s, g.chooseHostIn(s, gr, ""), nil
}

// closedHosts returns the hosts that are asleep, or lost, and not to be woken now.
func (g *Gate) closedHosts(s *state.Snapshot, now time.Time) map[string]catalog.Closed {
	closed := g.catalog().Closed(now, g.cfg.AwakeToday)
	maps.DeleteFunc(closed, func(name string, _ catalog.Closed) bool {
		h := s.Hosts[name]
		return h != nil && h.State != policy.Asleep && h.State != policy.Lost
	})
	return closed
}

// chooseHostIn makes the acquisition's choice on a snapshot. refreshed is the host that was read again for this
// snapshot, or "".
func (g *Gate) chooseHostIn(s *state.Snapshot, gr *group, refreshed string) nextAction {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recovery.observe(s, now)
	if g.recovery.active(now) {
		return nextAction{do: actionPlace, at: now.Add(maxStalePause)}
	}
	failedStarts, retry := g.hostBackoff.blockedKeys(now)
	gr.acquisition.closed, gr.acquisition.now = g.closedHosts(s, now), now
	if !gr.acquisition.explicit { // an explicit load may have other options
		gr.acquisition.avoidForModel, gr.acquisition.backoffErr = g.avoidForModelLocked(gr.model, now)
	}
	return gr.acquisition.chooseHost(s, g.catalog(), failedStarts, retry, refreshed)
}

func (g *Gate) onAcquired(gr *group, got state.Acquired, err error) nextAction {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && err != nil && !errors.Is(err, state.ErrUnavailable) {
		return fail(api.ShuttingDown())
	}
	old := gr.acquisition.ticket
	v := gr.acquisition.onAcquired(now, got, err)
	if v.do == actionPlace && !v.at.IsZero() {
		v.at = now.Add(jitter(v.at.Sub(now)))
	}
	if t := gr.acquisition.ticket; t != old && t != "" {
		delete(g.tickets, old)
		g.tickets[t] = gr
		if !gr.startUntil.IsZero() {
			gr.startUntil, gr.keep = time.Time{}, true
		}
		select {
		case <-gr.queued:
		default:
			close(gr.queued)
		}
		g.log.Debug("waits for a ticket", "model", gr.model, "ticket", t, "host", got.Host, "status", got.Status)
	}
	g.noteStageLocked(gr, now)
	if got.WakeToken != "" {
		g.wakeLocked(got.Host, got.WakeToken)
	}
	return v
}

// jitter varies a pause by up to half its length, so that gateways that were refused together do not retry together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// processInbox processes the inbox and the mirror's snapshot.
func (g *Gate) processInbox(gr *group) nextAction {
	now, snapshot := time.Now(), g.mirror.Snapshot()
	g.mu.Lock()
	defer g.mu.Unlock()
	ticket := gr.acquisition.ticket
	v := nextAction{do: actionWait}
	switch in := gr.inbox; {
	case in.status != nil:
		v = gr.acquisition.onTicketState(now, *in.status)
	case in.err != nil:
		v = gr.acquisition.onStoreError(now, in.err)
	}
	gr.inbox = inbox{}
	if v.do == actionWait {
		failedStarts, _ := g.hostBackoff.blockedKeys(now)
		v = gr.acquisition.onSnapshot(now, snapshot, g.catalog(), failedStarts)
	}
	if gr.acquisition.ticket != ticket {
		delete(g.tickets, ticket)
	}
	if v.do == actionWait {
		g.noteStageLocked(gr, now)
	}
	return v
}

// finish delivers the outcome to all waiters in order of arrival. If the ready model's host no longer has an address,
// it asks again.
func (g *Gate) finish(gr *group, v nextAction) (next nextAction, over bool) {
	var e Endpoint
	if v.err == nil {
		ok := false
		if e, ok = g.endpointOn(v.host, gr.model); !ok {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.dropTicketLocked(gr)
			return gr.acquisition.restart(time.Now()), false
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
	info.Waiters, info.Stages = gr.waiters.Len(), gr.stages
	g.finishAllLocked(gr, e, info, err)
	g.dropTicketLocked(gr)
	g.removeGroupLocked(gr)
	return nextAction{}, true
}

func (g *Gate) finishAllLocked(gr *group, e Endpoint, info LoadInfo, err error) {
	for w := gr.waiters.Front(); w != nil; w = gr.waiters.Front() {
		g.finishLocked(w.Value.(*Waiter), e, info, err)
	}
}

func (g *Gate) dropTicketLocked(gr *group) {
	delete(g.tickets, gr.acquisition.ticket)
	gr.acquisition.ticket, gr.acquisition.host, gr.acquisition.state, gr.acquisition.replacing = "", "", "", ""
	gr.acquisition.round++
	gr.inbox = inbox{}
}

// removeGroupLocked removes a finished group from the gate.
func (g *Gate) removeGroupLocked(gr *group) {
	delete(g.allGroups, gr)
	if !gr.acquisition.explicit {
		delete(g.groups, gr.model)
	}
}

// endpointOn returns the endpoint of a model on a host that just loaded it, which the mirror's model records may not
// show yet.
func (g *Gate) endpointOn(host, model string) (Endpoint, bool) {
	h := g.mirror.Snapshot().Hosts[host]
	if h == nil || h.Addr == "" {
		s, err := g.mirror.RefreshHosts(g.life, []string{host})
		if err != nil || s.Hosts[host] == nil || s.Hosts[host].Addr == "" {
			return Endpoint{}, false
		}
		h = s.Hosts[host]
	}
	return Endpoint{Host: host, Addr: h.Addr, TLS: h.TLS, traffic: g.traffic.of(host, model)}, true
}
