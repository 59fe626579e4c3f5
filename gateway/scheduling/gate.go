package scheduling

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

const (
	renewEvery = time.Second // how often tickets are renewed and read, in case their events were lost
	renewBatch = 128         // tickets per call, so that one call never blocks the store for long
)

// Gate decides which runner gets a request and holds requests whose model is not loaded. Its methods are safe for
// concurrent use. Run must be running for tickets to be renewed; pass the mirror's events to OnEvent.
type Gate struct {
	store   Store
	mirror  Mirror
	waker   Waker
	catalog func() *catalog.Catalog
	cfg     Config
	id      string
	log     *slog.Logger

	table      atomic.Pointer[endpointTable]
	tableMu    sync.Mutex // held by the one request that builds a table
	traffic    trafficByCopy
	throughput throughput // belongs to Run
	balancing  sync.Map   // state.CopyID: copies from which requests are being sent back

	roomMu        sync.Mutex // held by LoadIfRoom; guards leftoverTried
	leftoverTried time.Time

	life  context.Context // ends with Run: for calls and goroutines that outlive the request that caused them
	end   context.CancelFunc
	work  sync.WaitGroup // groups and wakes
	renew chan struct{}  // capacity 1: renew now
	swaps atomic.Uint64  // loads of the pool that evicted another model

	mu            sync.Mutex // never held over a call; guards the following fields and all groups and waiters
	closed        bool
	waiting       int    // waiters in all groups
	serial        uint64 // of operations
	groups        map[string]*group
	allGroups     map[*group]struct{}
	tickets       map[string]*group                  // the group of each ticket
	watches       map[string]chan state.TicketRecord // outcomes of unloads that a call here waits for, by ticket
	wakes         map[string]*powerLease
	estimates     estimates
	loadBackoff   backoff[state.CopyID]     // failed loads
	failedEntries map[string]*catalog.Model // by model: its entry when a load last failed; a changed one ends the backoff
	hostBackoff   backoff[string]           // failed starts, by host
	recovery      recoveryPause
}

// New makes a gate. Run it, or Close it if it never runs.
func New(c Config) *Gate {
	c = c.withDefaults()
	g := &Gate{
		store: c.Store, mirror: c.Mirror, waker: c.Waker, catalog: c.Catalog, cfg: c, id: c.Gateway, log: c.Log,
		traffic: trafficByCopy{m: map[state.CopyID]*copyTraffic{}}, throughput: throughput{samples: map[state.CopyID][]sample{}, parallel: map[string]int{}},
		renew: make(chan struct{}, 1), groups: map[string]*group{}, allGroups: map[*group]struct{}{}, tickets: map[string]*group{},
		watches: map[string]chan state.TicketRecord{}, wakes: map[string]*powerLease{},
		estimates:     estimates{load: map[string]time.Duration{}, wake: map[string]time.Duration{}},
		loadBackoff:   backoff[state.CopyID]{base: 2 * time.Second, max: time.Minute, free: 1, byKey: map[state.CopyID]*failures{}},
		failedEntries: map[string]*catalog.Model{},
		hostBackoff:   backoff[string]{base: time.Second, max: 30 * time.Second, byKey: map[string]*failures{}},
	}
	g.life, g.end = context.WithCancel(context.Background())
	g.table.Store(&endpointTable{})
	return g
}

// Enter adds a request to those that wait for a model, and starts its load if none is in progress. The error is an
// immediate refusal: queue_full, overloaded, model_backoff, model_not_found or draining, or the account's.
func (g *Gate) Enter(r WaitRequest) (*Waiter, error) {
	m, ok := g.catalog().Model(r.Model)
	if !ok {
		return nil, api.UnknownModel(r.Model)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, api.ShuttingDown()
	}
	gr := g.groups[r.Model]
	if gr == nil {
		if err := g.backoffLocked(m); err != nil {
			return nil, err
		}
	} else if gr.waiters.Len() >= g.cfg.MaxPerModel {
		return nil, api.Newf(api.QueueFull, "Too many requests wait for the model '%s'.", r.Model).WithRetryAfter(g.progressLocked(gr).ETA)
	}
	if g.waiting >= g.cfg.MaxTotal {
		e := api.New(api.Overloaded, "Too many requests wait for models to be loaded.")
		if gr != nil {
			e = e.WithRetryAfter(g.progressLocked(gr).ETA)
		}
		return nil, e
	}
	if err := g.admitLocked(r, gr); err != nil {
		return nil, err
	}
	if gr == nil {
		gr = g.newGroupLocked(acquisition{model: r.Model, refusedBy: r.Refused, priority: r.Priority})
	} else {
		if gr.acquisition.ticket == "" {
			gr.acquisition.refusedBy = append(gr.acquisition.refusedBy, r.Refused...)
		}
		if gr.acquisition.raise(r.Priority); gr.acquisition.raised {
			gr.notify()
		}
	}
	if r.DontWait {
		gr.keep = true
		if gr.acquisition.ticket == "" {
			gr.startUntil = time.Now().Add(g.cfg.Hold)
		}
		w := &Waiter{gate: g, group: gr, entered: time.Now(), done: make(chan struct{}), ahead: gr.waiters.Len()}
		w.err = loading(r.Model).WithRetryAfter(g.progressLocked(gr).ETA)
		close(w.done)
		return w, nil
	}
	limit := g.cfg.Hold
	if r.Limit > 0 {
		limit = min(limit, r.Limit)
	}
	w := g.joinLocked(gr, limit)
	w.account = r.Account
	return w, nil
}

// admitLocked charges an account for a request that joins a group; a nil group means that it starts one.
func (g *Gate) admitLocked(r WaitRequest, gr *group) error {
	if r.Account == nil {
		return nil
	}
	if !r.DontWait {
		if err := r.Account.BeginWait(); err != nil {
			e := api.As(err)
			if gr != nil {
				e = e.WithRetryAfter(g.progressLocked(gr).ETA)
			}
			return e
		}
	}
	if gr == nil {
		if err := r.Account.CountLoad(); err != nil {
			if !r.DontWait {
				r.Account.EndWait()
			}
			return err
		}
	}
	return nil
}

func (g *Gate) newGroupLocked(a acquisition) *group {
	a.id, a.evict = g.nextOperationLocked(), g.cfg.Evict
	gr := &group{
		model: a.model, wakeup: make(chan struct{}, 1), queued: make(chan struct{}), began: time.Now(), waiters: list.New(), acquisition: a,
	}
	if !a.explicit {
		g.groups[a.model] = gr
	}
	g.allGroups[gr] = struct{}{}
	g.work.Add(1)
	go g.serve(gr)
	return gr
}

// nextOperationLocked returns the prefix of a new operation id, unique in the pool.
func (g *Gate) nextOperationLocked() string {
	g.serial++
	return g.id + "-" + strconv.FormatUint(g.serial, 10)
}

func (g *Gate) joinLocked(gr *group, limit time.Duration) *Waiter {
	w := &Waiter{gate: g, group: gr, entered: time.Now(), done: make(chan struct{}), ahead: gr.waiters.Len()}
	w.element = gr.waiters.PushBack(w)
	w.timer = time.AfterFunc(limit, w.expire)
	g.waiting++
	return w
}

// backoffLocked refuses a model whose loads kept failing on all its hosts, or on maxFailedHosts of them, until the first
// of these can be tried again or its catalog entry changes.
func (g *Gate) backoffLocked(m *catalog.Model) error {
	if old := g.failedEntries[m.ID]; old != nil && old != m && !reflect.DeepEqual(old, m) {
		maps.DeleteFunc(g.loadBackoff.byKey, func(id state.CopyID, _ *failures) bool { return id.Model == m.ID })
		delete(g.failedEntries, m.ID)
	}
	if avoidForModel, err := g.avoidForModelLocked(m.ID, time.Now()); err != nil && len(avoidForModel) >= min(maxFailedHosts, len(g.catalog().HostsFor(m))) {
		return err
	}
	return nil
}

// avoidForModelLocked lists the hosts to avoid because loads of the model kept failing there, and returns the refusal for
// when there are no others. It returns nil if there are none.
func (g *Gate) avoidForModelLocked(model string, now time.Time) (hosts []string, refusal *api.Error) {
	for id := range g.loadBackoff.byKey {
		d := g.loadBackoff.remaining(id, now)
		if id.Model != model || d == 0 {
			continue
		}
		hosts = append(hosts, id.Host)
		if refusal == nil || d < refusal.RetryAfter {
			text := fmt.Sprintf("Loading the model '%s' failed repeatedly; try again later.", model)
			if last := g.loadBackoff.message(id); last != "" {
				text += " The last error: " + last
			}
			refusal = api.New(api.ModelBackoff, text).WithRetryAfter(d)
		}
	}
	return hosts, refusal
}

// Waiting returns how many requests wait at this gateway, by model.
func (g *Gate) Waiting() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make(map[string]int, len(g.groups))
	for gr := range g.allGroups {
		if n := gr.waiters.Len(); n > 0 {
			out[gr.model] += n
		}
	}
	return out
}

// Swaps returns how many of the pool's loads evicted another model since this gateway started.
func (g *Gate) Swaps() uint64 { return g.swaps.Load() }

// OnEvent processes an event of the pool. It never blocks.
func (g *Gate) OnEvent(e state.Event) {
	switch e.Kind {
	case "sync":
		g.renewNow()
	case "host":
		// The power lease of a host that went down may be free now: a gateway with requests for the host can take it
		// and wake the host.
		if e.State == string(policy.Asleep) || e.State == string(policy.Lost) {
			g.renewNow()
		}
	case "ticket":
		if e.State == "queued" {
			return // the gateway that queued it knows more: its position
		}
		r := e.Record()
		g.mu.Lock()
		defer g.mu.Unlock()
		if r.State == state.TicketReady && r.Evicted != "" { // counted once; renewals repeat it
			g.swaps.Add(1)
		}
		g.deliverLocked(state.TicketStatus{Ticket: e.Ticket, Found: true, Record: r})
	}
}

// deliverLocked passes on a ticket's state, and records what ended tickets show.
func (g *Gate) deliverLocked(s state.TicketStatus) {
	r := s.Record
	now := time.Now()
	switch {
	case !s.Found || r.Kind == "unload":
	case r.State == state.TicketReady:
		smooth(g.estimates.load, r.Model, time.Duration(r.LoadMS)*time.Millisecond)
		g.loadBackoff.succeed(state.CopyID{Host: r.Host, Model: r.Model})
		delete(g.failedEntries, r.Model)
		g.hostBackoff.succeed(r.Host)
	case r.State == state.TicketFailed && interrupted(r):
	case r.State == state.TicketFailed && hostFault(r):
		// One failed wake ends all tickets of the host in the same moment, which makes them one failure.
		g.hostBackoff.fail(r.Host, cmp.Or(r.Fields["ended_ms"], s.Ticket), "", now)
	case countsForBackoff(r):
		g.loadBackoff.fail(state.CopyID{Host: r.Host, Model: r.Model}, s.Ticket, r.Message, now)
		g.failedEntries[r.Model], _ = g.catalog().Model(r.Model)
	}
	if gr := g.tickets[s.Ticket]; gr != nil {
		if s.Found && r.Model != gr.model {
			s = state.TicketStatus{Ticket: s.Ticket} // lost: a store that lost writes has reused its number
		}
		gr.inbox.put(s)
		gr.notify()
	}
	if w := g.watches[s.Ticket]; w != nil && (!s.Found || r.Done()) {
		if !s.Found {
			r = state.TicketRecord{ID: s.Ticket, State: "dropped"}
		}
		w <- r // capacity 1, and the watch ends with its first value
		delete(g.watches, s.Ticket)
	}
}

func (g *Gate) renewNow() {
	select {
	case g.renew <- struct{}{}:
	default:
	}
}

// Run renews the gate's tickets until ctx ends, and has further copies loaded (copies.go). Then it ends all waits with
// the error draining, gives up its tickets, and returns when all its goroutines have ended. Call it once.
func (g *Gate) Run(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			g.Close()
			return
		case <-tick.C:
			g.forgetDeleted()
			g.addCopies(ctx)
		case <-g.renew:
		}
		g.renewAll(ctx)
	}
}

// forgetDeleted drops what was learned of models that the catalog no longer has.
func (g *Gate) forgetDeleted() {
	c := g.catalog()
	deleted := func(model string) bool { _, ok := c.Model(model); return !ok }
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.estimates.load, func(model string, _ time.Duration) bool { return deleted(model) })
	maps.DeleteFunc(g.loadBackoff.byKey, func(id state.CopyID, _ *failures) bool { return deleted(id.Model) })
	maps.DeleteFunc(g.failedEntries, func(model string, _ *catalog.Model) bool { return deleted(model) })
}

// Close ends all waits with the error draining and waits for the gate's goroutines. Later calls of Enter are refused. It
// may be called more than once.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closed = true
	for gr := range g.allGroups {
		g.finishAllLocked(gr, Endpoint{}, LoadInfo{}, api.ShuttingDown())
		gr.notify()
	}
	g.mu.Unlock()
	g.end()
	g.work.Wait()
}

// renewAll renews and reads every ticket with waiters here, and those that are watched.
func (g *Gate) renewAll(ctx context.Context) {
	s := g.mirror.Snapshot()
	g.mu.Lock()
	g.recovery.observe(s, time.Now())
	renewals := make([]state.Renewal, 0, len(g.tickets)+len(g.watches))
	for id, gr := range g.tickets {
		if n := gr.waiters.Len(); n > 0 {
			renewals = append(renewals, state.Renewal{Ticket: id, Waiting: n})
		}
	}
	for id := range g.watches {
		renewals = append(renewals, state.Renewal{Ticket: id})
	}
	g.mu.Unlock()
	for len(renewals) > 0 {
		part := renewals[:min(renewBatch, len(renewals))]
		renewals = renewals[len(part):]
		statuses, err := g.store.Renew(ctx, g.id, part...)
		g.mu.Lock()
		for _, st := range statuses {
			if gr := g.tickets[st.Ticket]; gr != nil {
				gr.waiting = st.Waiting
			}
			g.deliverLocked(st)
			if st.WakeToken != "" {
				g.wakeLocked(st.Record.Host, st.WakeToken)
			}
		}
		if err != nil {
			for _, r := range part {
				if gr := g.tickets[r.Ticket]; gr != nil {
					gr.inbox.err = err
					gr.notify()
				}
			}
		}
		g.mu.Unlock()
	}
}
