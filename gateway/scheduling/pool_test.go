package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pool is a test's state store, mirror and hosts, in memory and in the test's own time.
type pool struct {
	Store    // nil: for calls that tests on the fake do not make
	mu       sync.Mutex
	rev      uint64
	serial   int
	epoch    string
	hosts    map[string]*state.HostRecord
	tickets  map[string]*fakeTicket
	ops      map[string]string
	duties   map[string]string // host → token
	stopping map[string]bool   // hosts whose machine a sweep is turning off
	gates    []*Gate
	down     bool
	slow     time.Duration // how long a call takes before it fails while the pool is down
	mute     bool          // events are lost
	stale    int           // how many more Acquires are refused as stale
	behind   bool          // Snapshot does not refresh the mirror
	kept     *state.Snapshot
	calls    map[string]int
	asking   map[string]int // Acquires in progress by gateway and model
	doubled  bool           // two were in progress at once
	loadTime time.Duration
	outcome  func(model string, attempt int) map[string]string // nil or no code: ready
	loads    map[string]int
	saved    map[string]state.Conversations // of any model
}

func (p *pool) Conversations(context.Context, string) (map[string]state.Conversations, error) {
	return p.saved, nil
}

type fakeTicket struct {
	rec     state.TicketRecord
	waiters map[string]bool
	bg      bool
	// priorities with which it was acquired
	priorities []string
}

func newPool(hosts ...string) *pool {
	p := &pool{
		epoch: "1", hosts: map[string]*state.HostRecord{}, tickets: map[string]*fakeTicket{}, ops: map[string]string{},
		duties: map[string]string{}, calls: map[string]int{}, asking: map[string]int{}, loads: map[string]int{}, loadTime: 2 * time.Second,
	}
	for _, h := range hosts {
		p.host(h, "ready")
	}
	return p
}

func (p *pool) host(name string, st policy.HostState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rev++
	p.hosts[name] = &state.HostRecord{
		Name: name, State: st, Addr: name + ":1", Devices: "cpu", Limits: "-1", Generation: 7,
		Models: map[string]*state.ModelRecord{}, Fields: map[string]string{},
	}
	if st == "asleep" {
		p.hosts[name].Addr = ""
	}
}

func (p *pool) setState(host string, st policy.HostState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rev++
	p.hosts[host].State = st
	if st == policy.Ready {
		p.hosts[host].Addr = host + ":1"
	}
}

func (p *pool) loaded(host, model string, inFlight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rev++
	p.hosts[host].Models[model] = &state.ModelRecord{ID: model, Host: host, State: "loaded", Type: "llm", Device: "cpu", InFlight: inFlight}
}

func (p *pool) Snapshot() *state.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil || !p.behind && !p.down && p.kept.Revision != p.rev {
		p.kept = p.copyLocked()
	}
	return p.kept
}

func (p *pool) Refresh(context.Context) (*state.Snapshot, error) {
	p.mu.Lock()
	down, slow := p.down, p.slow
	p.mu.Unlock()
	if down {
		time.Sleep(slow)
		return nil, state.ErrUnavailable
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = p.copyLocked()
	return p.kept, nil
}

func (p *pool) RefreshHosts(ctx context.Context, _ []string, _ ...string) (*state.Snapshot, error) {
	return p.Refresh(ctx)
}

func (p *pool) copyLocked() *state.Snapshot {
	s := &state.Snapshot{Revision: p.rev, Epoch: p.epoch, NowMS: time.Now().UnixMilli(), Taken: time.Now(), Hosts: map[string]*state.HostRecord{}}
	for name, h := range p.hosts {
		c := *h
		c.Models = map[string]*state.ModelRecord{}
		for id, m := range h.Models {
			mc := *m
			c.Models[id] = &mc
		}
		c.Queue = slices.Clone(h.Queue)
		s.Hosts[name] = &c
	}
	return s
}

func (p *pool) Acquire(ctx context.Context, w state.Want) (got state.Acquired, err error) {
	key := w.Gateway + " " + w.Model
	p.mu.Lock()
	p.calls["acquire"]++
	if p.asking[key]++; p.asking[key] > 1 && !w.OwnTicket {
		p.doubled = true
	}
	takes := max(time.Millisecond, p.slow)
	p.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking[key]--
	switch {
	case err != nil:
		return got, err
	case p.down:
		return got, state.ErrUnavailable
	}
	if t := p.tickets[p.ops[w.Operation]]; t != nil {
		return p.attachLocked(t, w), nil
	}
	if !w.Unload && !w.OwnTicket {
		for name, h := range p.hosts {
			if m := h.Models[w.Model]; m != nil && m.State == "loaded" && h.State == "ready" && !w.Anew {
				return state.Acquired{Status: "loaded", Host: name}, nil
			}
		}
		for _, id := range slices.Sorted(maps.Keys(p.tickets)) {
			if t := p.tickets[id]; id != w.Replaces && t.rec.Model == w.Model && !t.rec.Done() && t.rec.Fields["own"] == "" && t.rec.Kind == "load" {
				return p.attachLocked(t, w), nil
			}
		}
	}
	old := p.tickets[w.Replaces]
	if w.Host == "" || w.Replaces != "" && (old == nil || old.rec.Done()) {
		return state.Acquired{Status: "none"}, nil
	}
	if p.stale > 0 || w.Revision != p.rev {
		p.stale--
		return got, state.ErrStale
	}
	if old != nil {
		p.endLocked(old, "dropped", nil)
	}
	p.serial++
	t := &fakeTicket{waiters: map[string]bool{}, bg: w.Unattended || old != nil && old.bg}
	t.rec = state.TicketRecord{ID: fmt.Sprint("t", p.serial), Kind: "load", Model: w.Model, Host: w.Host, State: "queued", Created: time.Now().UnixMilli(), Fields: map[string]string{}}
	maps.Copy(t.rec.Fields, w.Fields)
	if w.Unload {
		t.rec.Kind = "unload"
	}
	if w.OwnTicket {
		t.rec.Fields["own"] = "1"
	}
	p.tickets[t.rec.ID] = t
	p.ops[w.Operation] = t.rec.ID
	if p.hosts[w.Host] == nil {
		p.hosts[w.Host] = &state.HostRecord{Name: w.Host, State: "asleep", Devices: "cpu", Models: map[string]*state.ModelRecord{}, Fields: map[string]string{}}
	}
	p.hosts[w.Host].Queue = append(p.hosts[w.Host].Queue, t.rec)
	p.rev++
	got = p.attachLocked(t, w)
	got.Status = "created"
	return got, nil
}

func (p *pool) attachLocked(t *fakeTicket, w state.Want) state.Acquired {
	if w.Unattended {
		t.bg = true
	} else {
		t.waiters[w.Gateway] = true
	}
	t.priorities = append(t.priorities, cmp.Or(w.Priority, "normal"))
	return state.Acquired{Status: "attached", Host: t.rec.Host, Ticket: t.rec.ID, State: t.rec.State, Position: 1, WakeToken: p.powerLeaseLocked(t.rec.Host)}
}

func (p *pool) powerLeaseLocked(host string) string {
	h := p.hosts[host]
	if h == nil || h.State != "asleep" || p.stopping[host] {
		return ""
	}
	p.serial++
	h.State = "waking"
	p.rev++
	p.duties[host] = fmt.Sprint("w", p.serial)
	return p.duties[host]
}

func (p *pool) Renew(_ context.Context, gw string, renewals ...state.Renewal) ([]state.TicketStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls["renew"]++
	if p.down {
		return nil, state.ErrUnavailable
	}
	var out []state.TicketStatus
	for _, r := range renewals {
		id := r.Ticket
		t := p.tickets[id]
		if t == nil {
			out = append(out, state.TicketStatus{Ticket: id})
			continue
		}
		s := state.TicketStatus{Ticket: id, Found: true, Record: t.rec, Position: 1}
		if !t.rec.Done() {
			t.waiters[gw] = true
			s.WakeToken = p.powerLeaseLocked(t.rec.Host)
		}
		out = append(out, s)
	}
	return out, nil
}

func (p *pool) ReleaseTicket(_ context.Context, gw, id string, keep bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls["leave"]++
	t := p.tickets[id]
	if p.down || t == nil {
		return state.ErrUnavailable
	}
	delete(t.waiters, gw)
	t.bg = t.bg || keep
	if t.rec.State == "queued" && len(t.waiters) == 0 && !t.bg {
		p.endLocked(t, "dropped", nil)
	}
	return nil
}

func (p *pool) RenewWake(_ context.Context, host, token string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.down:
		return state.ErrUnavailable
	case p.hosts[host].State == "ready":
		return state.ErrAwake
	case p.duties[host] != token:
		return state.ErrNotOwner
	}
	return nil
}

func (p *pool) ReleaseWake(_ context.Context, host, token string) error {
	p.mu.Lock()
	if p.duties[host] != token {
		p.mu.Unlock()
		return state.ErrNotOwner
	}
	delete(p.duties, host)
	p.hosts[host].State = "asleep"
	p.rev++
	p.mu.Unlock()
	p.publish(state.Event{Kind: "host", Host: host, State: "asleep"})
	return nil
}

func (p *pool) EndOverdueWake(ctx context.Context, host, token, code, message string) error {
	return p.FailWake(ctx, host, token, code, message)
}

func (p *pool) FailWake(_ context.Context, host, token, code, message string) error {
	p.mu.Lock()
	p.calls["failwake"]++
	p.hosts[host].State = "asleep"
	delete(p.duties, host)
	p.rev++
	var events []state.Event
	for _, q := range slices.Clone(p.hosts[host].Queue) {
		events = append(events, p.endLocked(p.tickets[q.ID], "failed", map[string]string{"code": code, "message": message, "wake_failed": "1", "ended_ms": fmt.Sprint(time.Now().UnixMilli())}))
	}
	p.mu.Unlock()
	p.publish(events...)
	return nil
}

// endLocked gives a ticket its outcome and removes it from its queue.
func (p *pool) endLocked(t *fakeTicket, st state.TicketState, fields map[string]string) state.Event {
	maps.Copy(t.rec.Fields, fields)
	f := t.rec.Fields
	t.rec.State, t.rec.Code, t.rec.Message, t.rec.WakeError, t.rec.Evicted = st, f["code"], f["message"], f["wake_failed"] == "1", f["evicted"]
	t.rec.LoadMS = state.ParseNumber(f["load_ms"])
	h := p.hosts[t.rec.Host]
	h.Queue = slices.DeleteFunc(h.Queue, func(q state.TicketRecord) bool { return q.ID == t.rec.ID })
	if h.Loading == t.rec.ID {
		h.Loading = ""
	}
	p.rev++
	return state.Event{Kind: "ticket", Ticket: t.rec.ID, Host: t.rec.Host, Model: t.rec.Model, State: string(st), Fields: maps.Clone(f)}
}

func (p *pool) publish(events ...state.Event) {
	p.mu.Lock()
	gates, mute := slices.Clone(p.gates), p.mute || p.down
	p.mu.Unlock()
	for _, e := range events {
		for _, g := range gates {
			if !mute {
				g.OnEvent(e)
			}
		}
	}
}

// runner carries out a host's queue until ctx ends.
func (p *pool) runner(ctx context.Context, host string) {
	for ctx.Err() == nil {
		if !p.carryOutOne(ctx, host) {
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

func (p *pool) carryOutOne(ctx context.Context, host string) bool {
	p.mu.Lock()
	h := p.hosts[host]
	if h == nil || h.State != "ready" || len(h.Queue) == 0 || p.down {
		p.mu.Unlock()
		return false
	}
	t := p.tickets[h.Queue[0].ID]
	if t.rec.Kind == "load" && len(t.waiters) == 0 && !t.bg {
		e := p.endLocked(t, "dropped", nil)
		p.mu.Unlock()
		p.publish(e)
		return true
	}
	t.rec.State = "loading"
	h.Queue[0] = t.rec
	h.Loading = t.rec.ID
	p.rev++
	model, unload := t.rec.Model, t.rec.Kind == "unload"
	p.loads[model]++
	attempt, loadTime := p.loads[model], p.loadTime
	begun := state.Event{Kind: "ticket", Ticket: t.rec.ID, Host: host, Model: model, State: "loading"}
	p.mu.Unlock()
	p.publish(begun)
	select {
	case <-time.After(loadTime):
	case <-ctx.Done():
		return false
	}
	p.mu.Lock()
	if t.rec.Done() || p.tickets[t.rec.ID] != t || h.State != "ready" {
		p.mu.Unlock()
		return true
	}
	fields := map[string]string{"cold": "1", "load_ms": fmt.Sprint(loadTime.Milliseconds())}
	if p.outcome != nil {
		maps.Copy(fields, p.outcome(model, attempt))
	}
	st := state.TicketReady
	switch {
	case fields["code"] != "":
		st = state.TicketFailed
	case unload:
		delete(h.Models, model)
	default:
		h.Models[model] = &state.ModelRecord{ID: model, Host: host, State: "loaded", Type: "llm", Device: "cpu"}
	}
	e := p.endLocked(t, st, fields)
	p.mu.Unlock()
	p.publish(e)
	return true
}

// count returns how often a call was made.
func (p *pool) count(call string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[call]
}

// loadsOf returns how many loads of a model started.
func (p *pool) loadsOf(model string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loads[model]
}

// set changes the pool.
func (p *pool) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// wakerFunc is a driver.
type wakerFunc func(ctx context.Context, host string) error

func (f wakerFunc) Wake(ctx context.Context, host string) error { return f(ctx, host) }

// testCatalog returns the models m0 … m9, each allowed on the hosts a and b in this order, and has more hosts.
func testCatalog(t testing.TB, more ...string) *catalog.Catalog {
	t.Helper()
	var b strings.Builder
	b.WriteString("models:\n")
	for i := range 10 {
		fmt.Fprintf(&b, "  m%d: {type: llm, recipe: standin, device: cpu, hosts: [a, b]}\n", i)
	}
	b.WriteString("hosts:\n")
	for _, h := range append(more, "a", "b") {
		fmt.Fprintf(&b, "  %s: {driver: exec, devices: [cpu], commands: {wake: [\"true\"], sleep: [\"true\"]}}\n", h)
	}
	c, _, err := catalog.Parse("models.yaml", []byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// loadsOnlyOn makes one host the only one for a model.
func (r *rig) loadsOnlyOn(host, model string) {
	m, _ := r.cat.Load().Model(model)
	m.Hosts = []string{host}
}

// rig is a pool with one gate and a runner on every host.
type rig struct {
	*pool
	*Gate
	cat atomic.Pointer[catalog.Catalog]
}

// start runs a gate (and the hosts' runners) until the test ends; call it inside a synctest bubble.
func start(t *testing.T, p *pool, change func(*Config)) *rig {
	t.Helper()
	r := &rig{pool: p}
	r.cat.Store(testCatalog(t))
	c := Config{
		Store: p, Mirror: p, Catalog: r.cat.Load, Gateway: fmt.Sprint("gw", len(p.gates)),
		Waker: wakerFunc(func(context.Context, string) error { return nil }),
	}
	if change != nil {
		change(&c)
	}
	r.Gate = New(c)
	first := len(p.gates) == 0
	p.gates = append(p.gates, r.Gate)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	if first {
		for _, h := range []string{"a", "b"} {
			if p.hosts[h] != nil {
				wg.Go(func() { p.runner(ctx, h) })
			}
		}
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

// Snapshot selects the pool's method rather than that of the embedded gate.
func (r *rig) Snapshot() *state.Snapshot { return r.pool.Snapshot() }
