package state_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/testenv"
)

// TestHistories plays random histories of gateways and runners through the real scripts, under the test's own clock,
// and checks the package's invariants after every step. A failure names its seed. REVEILLE_HISTORY_SEEDS and
// REVEILLE_HISTORY_STEPS make it longer; REVEILLE_HISTORY_SEED replays one.
func TestHistories(t *testing.T) {
	seeds, steps, first := number(t, "REVEILLE_HISTORY_SEEDS", 6), number(t, "REVEILLE_HISTORY_STEPS", 200), 1
	if one := number(t, "REVEILLE_HISTORY_SEED", 0); one != 0 {
		seeds, first = 1, one
	}
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint("miniredis/", seed), func(t *testing.T) {
			newHistory(newBench(t, testenv.MiniRedis(t).Addr()), uint64(seed)).play(steps)
		})
	}
	t.Run("redis", func(t *testing.T) {
		newHistory(newBench(t, testenv.Redis(t)), uint64(first)).play(steps)
	})
}

func number(t *testing.T, env string, otherwise int) int {
	t.Helper()
	v := os.Getenv(env)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	must(t, err)
	return n
}

// history is the state of a random history: what its actors know and what the checks remember.
type history struct {
	*bench
	s     *state.Store
	rng   *rand.Rand
	trace []string

	hosts, models, gateways []string
	runners                 map[string]*runner
	tickets                 []string                   // every ticket ever made
	own                     map[string]bool            // tickets that are not shared
	snaps                   []uint64                   // revisions seen, for placements on old ones
	duties                  map[string]*duty           // latest wake lease of each host
	old                     map[string]map[string]bool // expired wake leases by host
	seen                    *picture                   // keys after the last step
	highest                 map[string]uint64          // rev, token, and generation by host
}

type runner struct {
	generation uint64
	boot       int
	loading    string
}

type duty struct {
	token string
	exp   int64
}

func newHistory(b *bench, seed uint64) *history {
	return &history{
		bench: b, s: b.store(), rng: rand.New(rand.NewPCG(seed, 7)),
		hosts: []string{"h1", "h2", "h3"}, models: []string{"m1", "m2", "m3", "m4"}, gateways: []string{"g1", "g2", "g3"},
		runners: map[string]*runner{"h1": {}, "h2": {}, "h3": {}}, own: map[string]bool{}, duties: map[string]*duty{},
		old: map[string]map[string]bool{"h1": {}, "h2": {}, "h3": {}}, highest: map[string]uint64{},
	}
}

func (h *history) play(steps int) {
	for range steps {
		h.step()
		h.check()
	}
}

func pick[T any](h *history, from []T) T { return from[h.rng.IntN(len(from))] }

func (h *history) chance(percent int) bool { return h.rng.IntN(100) < percent }

func (h *history) note(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf("%d ", h.now)+fmt.Sprintf(format, args...))
}

func (h *history) fail(format string, args ...any) {
	h.t.Helper()
	from := max(0, len(h.trace)-25)
	for _, line := range h.trace[from:] {
		h.t.Log(line)
	}
	h.t.Log(h.dump())
	h.t.Fatalf(format, args...)
}

// allowed fails on an error that is not among these.
func (h *history) allowed(err error, among ...error) bool {
	h.t.Helper()
	if err == nil {
		return true
	}
	if !slices.ContainsFunc(among, func(a error) bool { return errors.Is(err, a) }) {
		h.fail("unexpected: %v", err)
	}
	return false
}

func (h *history) step() {
	type action struct {
		weight int
		do     func()
	}
	actions := []action{
		{20, h.acquire}, {14, h.renew}, {5, h.leave}, {14, h.begin}, {12, h.finish}, {8, h.put}, {4, h.drop}, {10, h.beat}, {6, h.register},
		{4, h.hostState}, {5, h.wake}, {4, h.claim}, {8, h.passTime}, {1, h.flush}, {2, h.catalog}, {3, h.silence},
	}
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	n := h.rng.IntN(total)
	for _, a := range actions {
		if n -= a.weight; n < 0 {
			a.do()
			return
		}
	}
}

func (h *history) acquire() {
	snap, err := h.s.Snapshot(ctx)
	must(h.t, err)
	w := state.Want{
		Gateway: pick(h, h.gateways), Model: pick(h, h.models), Host: pick(h, h.hosts),
		Background: h.chance(15), Refused: h.chance(15), Explicit: h.chance(15), Unload: h.chance(15),
	}
	now := snap.RevisionOf(w.Host, w.Model)
	if w.Unload {
		now = snap.RevisionOf(w.Host, "")
	}
	w.Revision = now
	h.snaps = append(h.snaps, now)
	if rec := snap.Hosts[w.Host]; rec != nil && !w.Unload && h.chance(15) {
		now = snap.RevisionOf("", w.Model)
		w.Revision, w.HostState = now, rec.State
	}
	if h.chance(25) {
		w.Revision = pick(h, h.snaps)
	}
	if h.chance(15) {
		w.Host = ""
	}
	if h.chance(15) && len(h.tickets) > 0 {
		w.Replaces = pick(h, h.tickets)
	}
	before := h.dump()
	a, err := h.s.Acquire(ctx, w)
	h.note("acquire %+v: %+v %v", w, a, err)
	if !h.allowed(err, state.ErrStale) {
		if after := h.dump(); after != before {
			h.fail("a stale placement changed something: before\n%s", before)
		}
		return
	}
	switch a.Status {
	case "created":
		if w.Revision != now {
			h.fail("a placement on revision %d was accepted at %d", w.Revision, now)
		}
		h.tickets = append(h.tickets, a.Ticket)
		h.own[a.Ticket] = w.Explicit || w.Unload
	case "attached":
		if h.own[a.Ticket] {
			h.fail("attached to an own ticket")
		}
	case "loaded":
		if w.Explicit || w.Unload || w.Refused || len(snap.Copies(w.Model)) == 0 {
			h.fail("loaded: %v", snap.Copies(w.Model))
		}
	}
	h.given(a.Host, a.WakeToken)
}

// given checks a wake lease that a gateway received: nobody else may hold one.
func (h *history) given(host, token string) {
	if token == "" {
		return
	}
	if d := h.duties[host]; d != nil {
		if d.exp >= h.now {
			h.fail("two hold the wake lease of %s: %s until %d, and %s", host, d.token, d.exp, token)
		}
		h.old[host][d.token] = true
	}
	h.duties[host] = &duty{token, h.now + state.WakeLease.Milliseconds()}
}

// ended records that nobody holds the wake lease of a host any more.
func (h *history) ended(host string) {
	if d := h.duties[host]; d != nil {
		h.old[host][d.token] = true
		delete(h.duties, host)
	}
}

func (h *history) someTicket() string {
	if len(h.tickets) == 0 {
		return "1"
	}
	return h.tickets[len(h.tickets)-1-h.rng.IntN(min(len(h.tickets), 8))]
}

func (h *history) renew() {
	gw, ids := pick(h, h.gateways), []string{h.someTicket(), h.someTicket()}
	out, err := h.s.Renew(ctx, gw, ids...)
	must(h.t, err)
	h.note("renew %s %v: %+v", gw, ids, out)
	for i, st := range out {
		if st.Ticket != ids[i] {
			h.fail("statuses out of order")
		}
		h.given(st.Record.Host, st.WakeToken)
	}
}

func (h *history) leave() {
	gw, id, keep := pick(h, h.gateways), h.someTicket(), h.chance(20)
	must(h.t, h.s.ReleaseTicket(ctx, gw, id, keep))
	h.note("leave %s %s %v", gw, id, keep)
}

func (h *history) someRunner() (string, *runner) {
	name := pick(h, h.hosts)
	return name, h.runners[name]
}

func (h *history) begin() {
	name, r := h.someRunner()
	id := h.someTicket()
	if q := h.queueOf(name); len(q) > 0 && h.chance(80) {
		id = q[0]
	}
	err := h.s.Begin(ctx, name, r.generation, id, state.NPUSeat{})
	h.note("begin %s %s: %v", name, id, err)
	if h.allowed(err, state.ErrGone, state.ErrDropped, state.ErrBusy, state.ErrFenced, state.ErrUnknownHost) {
		r.loading = id
	}
}

func (h *history) queueOf(host string) []string {
	if h.seen == nil {
		return nil
	}
	return h.seen.lists["queue:"+host]
}

func (h *history) finish() {
	name, r := h.someRunner()
	id := r.loading
	if id == "" || h.chance(20) {
		id = h.someTicket()
	}
	out := state.Outcome{Failed: h.chance(30), Fields: map[string]string{"load_ms": "1"}}
	if h.chance(30) {
		out.Models = []state.ModelPut{h.record()}
	}
	_, err := h.s.Finish(ctx, name, r.generation, id, out)
	h.note("finish %s %s: %v", name, id, err)
	h.allowed(err, state.ErrGone, state.ErrFenced, state.ErrUnknownHost)
	if id == r.loading {
		r.loading = ""
	}
}

func (h *history) record() state.ModelPut {
	return state.ModelPut{ID: pick(h, h.models), Fields: map[string]string{
		"type": pick(h, []string{"llm", "embedding"}), "state": pick(h, []string{"loading", "loaded", "draining"}),
	}}
}

func (h *history) put() {
	name, r := h.someRunner()
	m := h.record()
	if age := h.rng.IntN(3) - 1; age >= 0 {
		m.Fields["used_age_ms"] = fmt.Sprint(1000 * age)
	}
	err := h.s.PutModels(ctx, name, r.generation, []state.ModelPut{m})
	h.note("put %s %v: %v", name, m, err)
	h.allowed(err, state.ErrFenced, state.ErrUnknownHost)
}

func (h *history) drop() {
	name, r := h.someRunner()
	m := pick(h, h.models)
	err := h.s.DropModel(ctx, name, r.generation, m, "test", h.chance(50))
	h.note("drop %s %s: %v", name, m, err)
	h.allowed(err, state.ErrFenced, state.ErrUnknownHost)
}

func (h *history) beat() {
	name, r := h.someRunner()
	_, _, err := h.s.Beat(ctx, name, r.generation, h.chance(50), map[string]state.Use{pick(h, h.models): {Open: 1, Age: h.age()}})
	h.note("beat %s: %v", name, err)
	if !h.allowed(err, state.ErrFenced, state.ErrUnknownHost) {
		h.registerAs(name, r)
	}
}

func (h *history) register() {
	name, r := h.someRunner()
	if h.chance(60) { // killed and restarted
		r.boot++
		r.loading = ""
	}
	h.registerAs(name, r)
}

func (h *history) registerAs(name string, r *runner) {
	info := state.HostInfo{Name: name, Addr: name + ":9000", Boot: fmt.Sprint(r.boot), Generation: r.generation, Loading: r.loading}
	if h.chance(50) {
		info.Models = append(info.Models, h.record())
	}
	g, _, err := h.s.Register(ctx, info)
	must(h.t, err)
	h.note("register %+v: %d", info, g)
	if g <= h.highest[name] {
		h.fail("generation %d of %s after %d", g, name, h.highest[name])
	}
	h.highest[name], r.generation = g, g
	h.ended(name)
}

func (h *history) hostState() {
	name, r := h.someRunner()
	st := pick(h, []string{"draining", "asleep", "asleep", "ready"})
	err := h.s.SetHostState(ctx, name, r.generation, st)
	h.note("state %s %s: %v", name, st, err)
	h.allowed(err, state.ErrFenced, state.ErrUnknownHost)
}

// wake renews or fails a wake lease: usually the current one, sometimes an expired one, which must have no effect.
func (h *history) wake() {
	name := pick(h, h.hosts)
	for token := range h.old[name] {
		before := h.dump()
		err := h.s.FailWake(ctx, name, token, "c", "old")
		if !h.allowed(err, state.ErrNotOwner, state.ErrAwake) && h.dump() == before {
			break
		}
		h.fail("the holder of an old lease %s had an effect", token)
	}
	d := h.duties[name]
	if d == nil {
		return
	}
	if h.chance(50) {
		err := h.s.RenewWake(ctx, name, d.token)
		h.note("renew wake %s %s: %v", name, d.token, err)
		if h.allowed(err, state.ErrAwake) {
			d.exp = h.now + state.WakeLease.Milliseconds()
		}
		return
	}
	err := h.s.FailWake(ctx, name, d.token, "no_capacity", "test")
	h.note("fail wake %s %s: %v", name, d.token, err)
	if h.allowed(err, state.ErrAwake) {
		h.ended(name)
	}
}

func (h *history) claim() {
	name := pick(h, h.hosts)
	token, err := h.s.ClaimWake(ctx, pick(h, h.gateways), name)
	must(h.t, err)
	h.note("claim %s: %q", name, token)
	h.given(name, token)
}

// age returns how long ago a model was used, negative if that was said before.
func (h *history) age() time.Duration {
	return pick(h, []time.Duration{-time.Millisecond, 0, time.Second, time.Minute})
}

func (h *history) passTime() {
	h.after(time.Duration(h.rng.IntN(12_000)-1_000) * time.Millisecond) // sometimes backwards
	h.note("time")
}

// silence stops all heartbeats for so long that waiters consider their hosts lost.
func (h *history) silence() {
	h.note("silence")
	for range 2 {
		h.after(state.LostAfter + time.Second)
		for range 3 {
			h.renew()
			h.check()
		}
	}
}

func (h *history) flush() {
	must(h.t, h.rdb.FlushAll(ctx).Err())
	h.after(10 * time.Second)
	h.note("flush")
	clear(h.duties)
	for _, old := range h.old {
		clear(old)
	}
	h.seen = nil
}

func (h *history) catalog() {
	_, err := h.s.PutCatalog(ctx, fmt.Sprint(h.rng.IntN(3)), []byte("{}"), map[string]string{pick(h, h.hosts): "wol"})
	must(h.t, err)
	h.note("catalogue")
}
