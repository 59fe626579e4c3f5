package day

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/testenv"
)

const (
	gateway = "gw"
	prefix  = "rv:{main}:"
	oddly   = 8 // of so many tickets one is asked for again, by its own gateway and by another
)

// scripts mirrors a world into Redis, each change by the calls that gateways, runners and the warmer make. A call that is
// refused, or that leaves Redis with another pool than the world's, breaks the test.
type scripts struct {
	t       *testing.T
	w       *world
	store   *state.Store
	rdb     redis.UniversalClient // reads keys
	gen     map[string]uint64     // by host
	beaten  map[string]time.Time  // by host
	tickets map[*load]string
	duties  map[string]string // to wake, by host
	sleeps  map[string]string // tokens, by host
	placed  int
	changed []*host   // by the calls of the event under way
	looked  time.Time // at the whole pool
}

func mirrored(t *testing.T, w *world) {
	t.Helper()
	s := &scripts{
		t: t, w: w, gen: map[string]uint64{}, beaten: map[string]time.Time{}, tickets: map[*load]string{}, duties: map[string]string{},
		sleeps: map[string]string{},
	}
	o := state.Options{URL: "redis://" + testenv.Redis(t), Timeout: 2 * time.Minute, Now: func() int64 { return w.now.UnixMilli() }}
	store, err := state.Open(o)
	s.must("open", err)
	t.Cleanup(func() { _ = store.Close() })
	rdb, err := state.Client(o)
	s.must("open", err)
	t.Cleanup(func() { _ = rdb.Close() })
	s.store, s.rdb = store, rdb
	w.mirror = mirror{
		place: s.place, begin: s.begin, drop: s.drop, loaded: s.loaded, ready: s.ready, asleep: s.asleep, stopped: s.stopped, checked: s.check,
	}
}

func (s *scripts) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %s: %v", s.w.now.Format("15:04:05.000"), what, err)
	}
}

// alive keeps a host that is up from counting as lost, and the duty to wake one from passing on. Runners beat every second
// and gateways renew every five; here they do so when somebody is about to look.
func (s *scripts) alive(h *host) {
	if s.w.now.Sub(s.beaten[h.Name]) < state.LostAfter/2 {
		return
	}
	before := s.beaten[h.Name]
	s.beaten[h.Name] = s.w.now
	switch {
	case h.State == policy.Waking && s.duties[h.Name] != "":
		s.must("duty to wake "+h.Name, s.store.RenewWake(s.t.Context(), h.Name, s.duties[h.Name]))
	case h.State == policy.Ready && s.gen[h.Name] != 0:
		open := map[string]int{}
		for _, r := range h.Residents {
			open[r.ID] = r.InFlight
		}
		_, err := s.store.Beat(s.t.Context(), h.Name, s.gen[h.Name], !h.Active.Before(before), open)
		s.must("beat of "+h.Name, err)
	}
}

// snapshot is the pool as decisions see it.
func (s *scripts) snapshot() *state.Snapshot {
	s.t.Helper()
	snap, err := s.store.Snapshot(s.t.Context())
	if err != nil {
		s.must("snapshot", err)
	}
	return snap
}

func (s *scripts) place(l *load) {
	s.changed = append(s.changed, l.host)
	s.alive(l.host)
	model := s.w.catalog[l.model].ID
	want := state.Want{
		Gateway: gateway, Model: model, Host: l.host.Name, Revision: s.snapshot().RevisionOf(l.host.Name, model), Operation: l.id, Background: true,
		Refused: slices.ContainsFunc(s.w.hosts, func(h *host) bool { return resident(h, model) != nil }), // by a copy that is closed
	}
	got, err := s.store.Acquire(s.t.Context(), want)
	s.must("acquire", err)
	if got.Status != "created" || got.Host != l.host.Name {
		s.t.Fatalf("acquire of %s for %s: %+v", l.id, l.host.Name, got)
	}
	if off := l.host.State == policy.Asleep && !l.host.stopping; off != (got.WakeToken != "") { // one duty for each wake, none else
		s.t.Fatalf("%s is %s and the duty to wake it is %q", l.host.Name, l.host.State, got.WakeToken)
	}
	s.tickets[l] = got.Ticket
	if got.WakeToken != "" {
		s.duties[l.host.Name], s.beaten[l.host.Name] = got.WakeToken, s.w.now
	}
	if s.placed++; s.placed%oddly == 0 {
		s.attach(want, got.Ticket)
	}
}

// attach asks for a ticket that is there: its gateway repeats the call, whose revision is old by now, and another gateway
// wants the same model. Both find the ticket, get no duty, and change nothing.
func (s *scripts) attach(want state.Want, ticket string) {
	before := s.snapshot().Revision
	other := state.Want{Gateway: "other", Model: want.Model, Background: true, Refused: want.Refused}
	for _, w := range []state.Want{want, other} { // 26, 10
		again, err := s.store.Acquire(s.t.Context(), w)
		s.must("attach", err)
		if again.Ticket != ticket || again.WakeToken != "" {
			s.t.Fatalf("%s attaches to %+v, not to %s", w.Gateway, again, ticket)
		}
	}
	if now := s.snapshot().Revision; now != before {
		s.t.Fatalf("attaching moved the revision from %d to %d", before, now)
	}
}

func (s *scripts) ready(h *host) {
	s.changed = append(s.changed, h)
	old := s.gen[h.Name]
	generation, _, err := s.store.Register(s.t.Context(), state.HostInfo{
		Name: h.Name, Boot: fmt.Sprint(s.w.now.UnixNano()), Addr: "127.0.0.1:1", Devices: h.Devices.String(), Limits: fmt.Sprint(slots), Generation: old,
	})
	s.must("register", err)
	if generation <= old { // 17
		s.t.Fatalf("generation of %s went from %d to %d", h.Name, old, generation)
	}
	if old != 0 { // 16
		if _, err := s.store.Beat(s.t.Context(), h.Name, old, true, nil); !errors.Is(err, state.ErrFenced) {
			s.t.Fatalf("an earlier runner of %s still writes it: %v", h.Name, err)
		}
	}
	s.gen[h.Name], s.beaten[h.Name] = generation, s.w.now
	delete(s.duties, h.Name)
}

func (s *scripts) begin(l *load) {
	s.changed = append(s.changed, l.host)
	s.alive(l.host)
	s.must("begin", s.store.Begin(s.t.Context(), l.host.Name, s.gen[l.host.Name], s.tickets[l]))
	s.put(l, policy.ModelLoading)
}

func (s *scripts) put(l *load, st policy.ModelState) {
	m := s.w.catalog[l.model]
	s.must("record", s.store.PutModels(s.t.Context(), l.host.Name, s.gen[l.host.Name], []state.ModelPut{{
		ID: m.ID, Fields: map[string]string{"used_age_ms": "0", "type": string(m.Type), "state": string(st), "device": m.Devices.String()},
	}}, npu(l.host)))
}

// npu names what is on the NPU of a host.
func npu(h *host) string {
	for _, r := range h.Residents {
		if r.Devices.Has(policy.NPU) {
			return r.ID
		}
	}
	return ""
}

func (s *scripts) loaded(l *load) {
	s.changed = append(s.changed, l.host)
	s.put(l, policy.ModelLoaded)
	_, err := s.store.Finish(s.t.Context(), l.host.Name, s.gen[l.host.Name], s.tickets[l], state.Outcome{})
	s.must("finish", err)
	delete(s.tickets, l)
}

func (s *scripts) drop(h *host, id string) {
	s.changed = append(s.changed, h)
	s.must("drop", s.store.DropModel(s.t.Context(), h.Name, s.gen[h.Name], id, npu(h), "stopped", false))
}

// asleep takes the host through the steps of a sleep until its driver is called.
func (s *scripts) asleep(h *host) {
	s.changed = append(s.changed, h)
	ctx := s.t.Context()
	s.alive(h)
	revision := s.snapshot().RevisionOf(h.Name, "")
	active, err := s.rdb.HGet(ctx, prefix+"host:"+h.Name, "active_ms").Result()
	s.must("last activity", err)
	token, err := s.store.CommitSleep(ctx, h.Name, "sweep", revision, active)
	s.must("commit", err)
	if _, err := s.store.CommitSleep(ctx, h.Name, "other sweep", revision, active); !errors.Is(err, state.ErrStale) { // 2 sweeps, one sleep
		s.t.Fatal("a stale commit: ", err)
	}
	s.must("confirm", s.store.ConfirmSleep(ctx, h.Name, s.gen[h.Name], token))
	s.must("stop", s.store.BeginStop(ctx, h.Name, "sweep", token))
	s.sleeps[h.Name] = token
}

// stopped ends the stop. Whoever waited for it hears of it, and one gets the duty to wake the host again.
func (s *scripts) stopped(h *host) {
	s.changed = append(s.changed, h)
	s.must("end of stop", s.store.EndStop(s.t.Context(), h.Name, "sweep", s.sleeps[h.Name], ""))
	for _, who := range []string{gateway, "other"} {
		token, err := s.store.ClaimWake(s.t.Context(), who, h.Name)
		s.must("claim", err)
		if wanted := who == gateway && len(h.Queue) > 0; wanted != (token != "") { // 20
			s.t.Fatalf("%d loads wait for %s, which was stopped, and %s gets the duty %q", len(h.Queue), h.Name, who, token)
		}
		if token != "" {
			s.duties[h.Name], s.beaten[h.Name] = token, s.w.now
		}
	}
}

// TestScripts plays the day by the real scripts on a real Redis under the virtual clock.
func TestScripts(t *testing.T) {
	compare(t, hours(t), mirrored)
}

// A request that comes while the machine of the only host stops waits for the end of the stop, and wakes it again. Days have
// no such moment: their hosts sleep when nobody asks.
func TestWantedWhileItStops(t *testing.T) {
	w := newWorld(0, policy.LRU, 2*time.Hour)
	w.hosts, w.agenda = w.hosts[:1], nil
	w.sweeps()
	mirrored(t, w)
	asleep := w.mirror.asleep
	w.mirror.asleep = func(h *host) {
		asleep(h)
		if w.tally.wakes == 1 {
			w.in(stopTime/2, func() { w.arrive(0) })
		}
	}
	w.at(epoch.Add(time.Second), func() { w.arrive(0) })
	got := w.run()
	for _, b := range w.broken {
		t.Error(b)
	}
	want := []time.Duration{wakeTime + w.reload[0], stopTime/2 + wakeTime + w.reload[0]}
	if got.again != 1 || got.wakes != 2 || !slices.Equal(got.waits, want) {
		t.Errorf("%d of %d wakes followed a stop, and the requests waited %v, want %v", got.again, got.wakes, got.waits, want)
	}
}
