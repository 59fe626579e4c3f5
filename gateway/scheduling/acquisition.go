package scheduling

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

const (
	maxStale       = 32                     // consecutive placements that may be stale or find nothing to attach to
	stalePause     = 10 * time.Millisecond  // pause after the first of them
	maxStalePause  = 200 * time.Millisecond // limit of that pause, before jitter
	maxUnanswered  = 2                      // Acquire calls without a response; not 1, because the first may have succeeded
	maxFailedHosts = 3                      // hosts on which a model may fail to load; after that no more are tried or woken
	maxSilence     = 10 * time.Second       // a wait with a ticket ends when the store has been unavailable for this long
)

// acquisition is the state machine of how a group gets its model: what it wants from the pool and how far it has got.
// Its methods take new information and the current time, update the acquisition and return the next action. They do no
// I/O, read no clock and start no goroutine.
//
// Life: placing (no ticket) → waiting (a ticket) → finished. It goes from waiting back to placing when the ticket was
// lost or dropped, or its host could not carry it out.
type acquisition struct {
	model    string
	explicit bool              // it is of a management call, with a ticket of its own
	fields   map[string]string // for the runner; nil for shared tickets
	priority string            // the highest of the requests; as in state.Want
	raised   bool              // the ticket has been acquired with a lower one
	evict    policy.EvictionPolicy
	id       string // unique in the pool, the prefix of operation ids

	refusedBy      []string // hosts that refused requests for the model, which the store may still show as loaded; until the first ticket
	round          int      // counts attempts; part of the operation id, so that only repeated calls have the same one
	stale          int      // consecutive retries: stale, nothing to attach to, or a ticket that was lost; until the next ticket
	unanswered     int      // consecutive calls without a response
	changedHosts   []string // hosts that changed during a placement on them; until the next ticket
	replacing      string   // ticket that must be replaced because its host is lost, "" if none
	lostTicketHost string   // host of a ticket that the store lost, "" if none; until the next ticket

	ticket       string
	host         string
	state        state.TicketState // TicketQueued or TicketLoading
	position     int
	loadingSince time.Time // when state first was TicketLoading, zero before
	lastReport   time.Time // when the store last reported the ticket

	noHostErr        *api.Error // why no host can be tried now, for waiters that time out meanwhile
	interruptedHosts []string   // hosts that reported that their machine is being reclaimed

	avoidAfterFailure []string                   // hosts where this acquisition's load failed
	failureErr        *api.Error                 // of the last of them, for when no host is left
	avoidForModel     []string                   // hosts where earlier loads of the model kept failing, set before each choice
	backoffErr        *api.Error                 // the refusal for when no host is left
	closed            map[string]catalog.Closed  // hosts that are asleep and not to be woken, set before each choice
	now               time.Time                  // of that choice
	tooLarge          map[string]*policy.Refusal // by host: its runner reported that its memory can never hold this load
	saved             map[string]int64           // policy.Model.Saved; nil until read
}

// policyModel returns the model to place, as a snapshot and a catalog describe it.
func (a *acquisition) policyModel(s *state.Snapshot, v placement.View) policy.Model {
	m := v.Model(s, a.model, a.fields["options"])
	m.TooLarge, m.Saved = a.tooLarge, a.saved
	return m
}

type action int

const (
	actionWait    action = iota // wait for the inbox or a snapshot
	actionPlace                 // choose a host and acquire, not before at
	actionAcquire               // acquire a ticket on host, or attach to that of another; on "", only attach
	actionFinish                // the group has its outcome: err, or the copy on host
)

type nextAction struct {
	do      action
	at      time.Time // of actionPlace; zero: now
	release string    // ticket to give up, "" if none

	err    *api.Error
	host   string // of actionAcquire, and of a finish without err
	record state.TicketRecord
}

func fail(err *api.Error) nextAction { return nextAction{do: actionFinish, err: err} }

func acquireOn(host string) nextAction { return nextAction{do: actionAcquire, host: host} }

// Reasons to avoid a host.
const (
	notStarted = "failed to start a short while ago"
	notLoaded  = "failed to load the model a short while ago"
	notWoken   = "is asleep, and not woken now by its rest or daily_host_hours"
)

// avoidSet lists the hosts that policy.Place must not choose, with the reason as text.
type avoidSet map[string]string

// avoiding returns the set of hosts that failed to start, that are closed, and that failed to load the model.
func avoiding(failedStarts []string, closed map[string]catalog.Closed, failedLoads ...string) avoidSet {
	a := avoidSet{}
	a.add(notStarted, failedStarts...)
	a.add(notWoken, slices.Collect(maps.Keys(closed))...)
	a.add(notLoaded, failedLoads...)
	return a
}

func (a avoidSet) add(reason string, hosts ...string) {
	for _, h := range hosts {
		a[h] = reason
	}
}

// maxSearchBatches and hostsPerBatch bound the search for a free slot in a large pool.
const (
	maxSearchBatches = 4
	hostsPerBatch    = 64
)

// freeHost returns a host of a large pool with a free slot, or "" if it does not find one soon. A host with a
// free slot is as good as any, unless the model has a list of hosts, so the search need not look at the others. It prefers
// refreshed, the host just read for this choice, and then those with saved conversations of the model.
func (a *acquisition) freeHost(s *state.Snapshot, v placement.View, avoid map[string]string, refreshed string) string {
	if m, _ := v.Catalog.Model(a.model); !s.Large() || len(m.Hosts) > 0 {
		return ""
	}
	free := func(names []string) string {
		v.Only = names
		if p := policy.Place(v.Pool(s), a.policyModel(s, v), avoid); p.Reason.Code == policy.FreeSlot {
			return p.Host
		}
		return ""
	}
	if refreshed != "" && free([]string{refreshed}) != "" {
		return refreshed
	}
	if host := free(slices.Collect(maps.Keys(a.saved))); host != "" {
		return host
	}
	batches := 0
	for names := range slices.Chunk(s.Names(), hostsPerBatch) {
		if host := free(names); host != "" {
			return host
		}
		if batches++; batches == maxSearchBatches {
			break
		}
	}
	return ""
}

// chooseHost decides where to acquire a ticket (actionAcquire), or that none can be acquired now (any other action).
// failedStarts, the hosts whose wake failed, can be tried again at the time retry. refreshed is the host of an earlier
// choice that has been read since, or "".
func (a *acquisition) chooseHost(s *state.Snapshot, c *catalog.Catalog, failedStarts []string, retry time.Time, refreshed string) nextAction {
	if _, ok := c.Model(a.model); !ok {
		return fail(api.UnknownModel(a.model))
	}
	if h := s.Hosts[a.host]; a.replacing != "" && h != nil && (h.State == policy.Ready || h.State == policy.Draining) {
		a.replacing = "" // its host is back
		return nextAction{do: actionWait}
	}
	if failed := cmp.Or(a.failureErr, a.backoffErr); len(a.avoidAfterFailure) >= maxFailedHosts || len(a.avoidForModel) >= maxFailedHosts {
		return fail(failed)
	}
	avoid := avoiding(failedStarts, a.closed)
	for _, name := range a.interruptedHosts {
		if h := s.Hosts[name]; h != nil && (h.State == policy.Draining || h.State == policy.Ready) {
			avoid[name] = "being reclaimed"
		}
	}
	if a.replacing != "" {
		avoid[a.host] = "lost"
	}
	v := placement.View{Catalog: c, Evict: a.evict}
	if len(a.refusedBy) > 0 {
		for _, other := range s.Copies(a.model) {
			if !slices.Contains(a.refusedBy, other.Host) {
				return nextAction{do: actionFinish, host: other.Host}
			}
		}
		v.ClosedModel = a.model // all recorded copies refused: their hosts can be chosen for the load
	}
	// A host with a load of the model, queued or in progress, is used even if other loads of it have failed there: no
	// second copy elsewhere. An explicit load also goes to a host that already has the model.
	existing := loadingHost(s, a.model)
	if a.explicit {
		existing = hostOf(s, a.model)
	}
	switch r := a.tooLarge[existing]; {
	case a.explicit && r != nil: // the existing copy stays, and no second one is loaded
		return fail(a.refusalErr(r))
	case a.explicit && slices.Contains(a.avoidAfterFailure, existing):
		return fail(a.failureErr)
	case existing != "" && avoid[existing] == "" && r == nil:
		return acquireOn(existing)
	}
	avoid.add(notLoaded, a.failedLoads()...)
	// A store that lost the ticket has come back with older data. The ticket's host may still carry the ticket out, and
	// another host would load a second copy.
	if h := s.Hosts[a.lostTicketHost]; h != nil && h.State == policy.Ready && avoid[a.lostTicketHost] == "" && a.tooLarge[a.lostTicketHost] == nil {
		return acquireOn(a.lostTicketHost)
	}
	avoidContended := maps.Clone(avoid) // avoid, and the hosts where other gateways are placing
	for _, name := range a.changedHosts {
		avoidContended[name] = "changes too fast"
	}
	if host := a.freeHost(s, v, avoidContended, refreshed); host != "" {
		a.noHostErr = nil
		return acquireOn(host)
	}
	pool, want := v.Pool(s), a.policyModel(s, v)
	p := policy.Place(pool, want, avoid)
	if slices.Contains(a.changedHosts, p.Host) {
		if other := policy.Place(pool, want, avoidContended); other.Host != "" && other.Reason.Code == p.Reason.Code {
			p = other
		}
	}
	if p.Host != "" {
		a.noHostErr = nil
		return acquireOn(p.Host)
	}
	if hasCopy(p.Refusal) {
		return acquireOn("")
	}
	if a.replacing != "" {
		a.replacing = "" // no host to move to after all
		return nextAction{do: actionWait}
	}
	if failed := cmp.Or(a.failureErr, a.backoffErr); failed != nil {
		return fail(failed)
	}
	if slices.ContainsFunc(p.Refusal.Hosts, func(h policy.HostRefusal) bool { return h.Reason.Code == policy.Avoided }) {
		if a.noHostErr == nil {
			a.noHostErr = a.noHost(p.Refusal)
		}
		if retry.IsZero() { // a host that is being reclaimed does not come back soon
			return fail(a.noHostErr)
		}
		return nextAction{do: actionPlace, at: retry}
	}
	return fail(a.refusalErr(p.Refusal))
}

// failedLoads lists the hosts that failed to load the model a short while ago.
func (a *acquisition) failedLoads() []string {
	return slices.Concat(a.avoidForModel, a.avoidAfterFailure)
}

// noHost returns the error for when all hosts are avoided: that of the closed host that opens first, if one could take
// the model.
func (a *acquisition) noHost(r *policy.Refusal) *api.Error {
	cause := errors.New(r.Explain())
	var first catalog.Closed
	for _, h := range r.Hosts {
		if c, ok := a.closed[h.Host]; ok && h.Reason.Code == policy.Avoided && (first.Until.IsZero() || c.Until.Before(first.Until)) {
			first = c
		}
	}
	if first.Until.IsZero() {
		return noCapacity(a.model, cause)
	}
	return closedErr("The host of the model '"+a.model+"'", first, a.now).WithCause(cause)
}

// hostOf returns the host that has the model or will have it first, or "". A load in progress takes precedence over a
// copy that is being stopped, because the model may not return to that copy's host.
func hostOf(s *state.Snapshot, model string) string {
	if copies := s.Copies(model); len(copies) > 0 {
		return copies[0].Host
	}
	if host := loadingHost(s, model); host != "" {
		return host
	}
	return firstHost(s, func(h *state.HostRecord) bool {
		return (h.State == policy.Ready || h.State == policy.Waking) && h.Models[model] != nil
	})
}

// loadingHost returns the host with a load of the model queued or in progress, or "". A sleeping host counts: it is
// woken for the load, if need be after its machine has finished shutting down.
func loadingHost(s *state.Snapshot, model string) string {
	isLoad := func(t state.TicketRecord) bool { return t.Kind == "load" && t.Model == model }
	return firstHost(s, func(h *state.HostRecord) bool {
		canServe := h.State == policy.Ready || h.State == policy.Waking || h.State == policy.Asleep
		return canServe && slices.ContainsFunc(h.Queue, isLoad)
	})
}

// firstHost returns the first matching host by name, or "".
func firstHost(s *state.Snapshot, match func(*state.HostRecord) bool) (first string) {
	for name, h := range s.Hosts {
		if (first == "" || name < first) && match(h) {
			first = name
		}
	}
	return first
}

// refusalErr returns the error for waiters of a refused placement.
func (a *acquisition) refusalErr(r *policy.Refusal) *api.Error {
	cause := errors.New(r.Explain())
	switch r.Code {
	case policy.SlotsPinned:
		k := api.SlotsPinned
		if a.explicit {
			k = api.SlotsPinnedConflict
		}
		return api.New(k, r.Error()).WithCause(cause)
	case policy.TooLarge:
		return api.New(api.ModelTooLarge, r.Error()).WithCause(cause)
	}
	return api.New(api.NoCapacity, r.Error()).WithCause(cause)
}

// acquireRequest returns the store call for a placement on a snapshot of that revision.
func (a *acquisition) acquireRequest(gateway, host string, revision uint64, unattended bool) state.Want {
	return state.Want{
		Gateway: gateway, Model: a.model, Host: host, Revision: revision, Unattended: unattended,
		Anew: len(a.refusedBy) > 0, OwnTicket: a.explicit, Priority: a.priority, Fields: a.fields, Operation: a.id + "-" + strconv.Itoa(a.round), Replaces: a.replacing,
	}
}

// raise has the load go before others with a lower priority than a request that joins.
func (a *acquisition) raise(priority string) {
	if rpc.ParsePriority(priority) < rpc.ParsePriority(a.priority) {
		a.priority, a.raised = priority, true
	}
}

// onAcquired processes the store's response to acquireRequest.
func (a *acquisition) onAcquired(now time.Time, got state.Acquired, err error) nextAction {
	switch {
	case errors.Is(err, state.ErrStale):
		return a.retry(now)
	case a.replacing != "" && (err != nil || got.Status == "none"):
		a.replacing = "" // the old ticket is still valid, or the event of its end is coming
		return nextAction{do: actionWait}
	case err == nil && got.Status == "none":
		return a.retry(now)
	case errors.Is(err, state.ErrUnavailable):
		if a.unanswered++; a.unanswered < maxUnanswered {
			return nextAction{do: actionPlace}
		}
		return fail(unavailable(err))
	case err != nil:
		return fail(api.As(err))
	case got.Status == "loaded":
		return nextAction{do: actionFinish, host: got.Host, release: a.replacing}
	}
	a.ticket, a.host, a.replacing = got.Ticket, got.Host, ""
	a.refusedBy, a.stale, a.unanswered, a.noHostErr, a.changedHosts, a.lostTicketHost = nil, 0, 0, nil, nil, ""
	a.round++
	a.loadingSince = time.Time{}
	a.setTicketState(now, got.State, got.Position)
	return nextAction{do: actionWait}
}

func (a *acquisition) setTicketState(now time.Time, st state.TicketState, position int) {
	a.lastReport, a.state, a.position = now, st, position
	if st == state.TicketLoading && a.loadingSince.IsZero() {
		a.loadingSince = now
	}
	if st != state.TicketLoading {
		a.loadingSince = time.Time{}
	}
}

// retry asks again with a new snapshot, a little later each time.
func (a *acquisition) retry(now time.Time) nextAction {
	if a.stale++; a.stale > maxStale {
		if a.replacing != "" {
			a.replacing, a.stale = "", 0
			return nextAction{do: actionWait}
		}
		return fail(unavailable(errors.New("the pool changes faster than a placement can be committed")))
	}
	return nextAction{do: actionPlace, at: now.Add(min(time.Duration(a.stale)*stalePause, maxStalePause))}
}

// restart forgets the ticket and asks for another.
func (a *acquisition) restart(now time.Time) nextAction {
	a.ticket, a.host, a.state, a.position, a.replacing = "", "", "", 0, ""
	a.round++
	return a.retry(now)
}

// onTicketState processes the ticket's current state.
func (a *acquisition) onTicketState(now time.Time, s state.TicketStatus) nextAction {
	if s.Ticket != a.ticket {
		return nextAction{do: actionWait} // a ticket that was given up meanwhile
	}
	switch {
	case !s.Found:
		a.lostTicketHost = a.host
		return a.restart(now)
	case s.Record.State == state.TicketDropped:
		return a.restart(now)
	case s.Record.State == state.TicketReady:
		host := a.host
		if s.Record.Host != "" {
			host = s.Record.Host
		}
		return nextAction{do: actionFinish, host: host, record: s.Record}
	case s.Record.State == state.TicketFailed && interrupted(s.Record):
		a.interruptedHosts = append(a.interruptedHosts, a.host)
		a.noHostErr = failure(s.Record, a.explicit)
		return a.restart(now)
	case s.Record.State == state.TicketFailed && hostFault(s.Record):
		a.noHostErr = noCapacity(a.model, errors.New(s.Record.Message))
		return a.restart(now)
	case s.Record.State == state.TicketFailed && s.Record.Code == api.ModelTooLarge.Code() && shortage(s.Record) != nil:
		if a.tooLarge == nil {
			a.tooLarge = map[string]*policy.Refusal{}
		}
		a.tooLarge[a.host] = shortage(s.Record)
		return a.restart(now)
	case s.Record.State == state.TicketFailed: // another host may have the file, the engine or the memory
		a.avoidAfterFailure, a.failureErr = append(a.avoidAfterFailure, a.host), failure(s.Record, a.explicit)
		return a.restart(now)
	}
	a.unanswered = 0
	a.setTicketState(now, s.Record.State, s.Position)
	return nextAction{do: actionWait}
}

// onStoreError handles a failure to read the ticket's state.
func (a *acquisition) onStoreError(now time.Time, err error) nextAction {
	if a.ticket != "" && now.Sub(a.lastReport) > maxSilence {
		return fail(unavailable(err))
	}
	return nextAction{do: actionWait}
}

// onSnapshot processes a snapshot: a ticket whose host is lost moves to another host if there is one, and otherwise
// waits for the host to come back.
func (a *acquisition) onSnapshot(now time.Time, s *state.Snapshot, c *catalog.Catalog, failedStarts []string) nextAction {
	h := s.Hosts[a.host]
	if a.ticket == "" || a.replacing != "" || h == nil || h.State != policy.Lost {
		return nextAction{do: actionWait}
	}
	avoid := avoiding(failedStarts, a.closed, a.failedLoads()...)
	avoid[a.host] = "lost"
	v := placement.View{Catalog: c, Evict: a.evict}
	p := policy.Place(v.Pool(s), a.policyModel(s, v), avoid)
	switch {
	case len(s.Copies(a.model)) > 0 && !a.explicit:
		old := a.ticket
		again := a.restart(now)
		again.release = old
		return again
	case p.Host != "" && p.Reason.Code != policy.LostHost, p.Host == "" && hasCopy(p.Refusal):
		a.replacing = a.ticket
		return nextAction{do: actionPlace}
	}
	return nextAction{do: actionWait}
}

// hasCopy reports whether some host was ruled out because it has the model or a ticket for it.
func hasCopy(r *policy.Refusal) bool {
	return slices.ContainsFunc(r.Hosts, func(h policy.HostRefusal) bool { return h.Reason.Code == policy.HasCopy })
}
