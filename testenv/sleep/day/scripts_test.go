package day

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/testenv"
)

const gateway = "gw"

// scripts mirrors a world into Redis, each change by the calls that gateways, runners and the warmer make. A call that is
// refused, or that leaves Redis with another pool than the world's, breaks the test.
type scripts struct {
	t       *testing.T
	w       *world
	store   *state.Store
	gen     map[string]uint64 // by host
	tickets map[*load]string
	duties  map[string]string // by host
	seen    *state.Snapshot   // since nothing changed
	dirty   bool              // something changed since it was compared
	beaten  time.Time
}

func mirrored(t *testing.T, w *world) {
	t.Helper()
	s := &scripts{t: t, w: w, gen: map[string]uint64{}, tickets: map[*load]string{}, duties: map[string]string{}}
	store, err := state.Open(state.Options{
		URL: "redis://" + testenv.Redis(t), Timeout: 2 * time.Minute, Now: func() int64 { return w.now.UnixMilli() },
	})
	s.must("open", err)
	t.Cleanup(func() { _ = store.Close() })
	s.store = store
	w.mirror = mirror{place: s.place, begin: s.begin, drop: s.drop, loaded: s.loaded, ready: s.ready, asleep: s.asleep, checked: s.check}
}

func (s *scripts) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %s: %v", s.w.now.Format("15:04:05.000"), what, err)
	}
}

// snapshot reads the pool, unless what was read last is still true: beats change no input of a decision.
func (s *scripts) snapshot() *state.Snapshot {
	s.t.Helper()
	s.beat()
	if s.seen == nil {
		snap, err := s.store.Snapshot(s.t.Context())
		s.must("snapshot", err)
		s.seen = snap
	}
	return s.seen
}

// changed is called after every call that may have changed the pool.
func (s *scripts) changed() { s.seen, s.dirty = nil, true }

// beat keeps the hosts that are up from counting as lost, and duties to wake from passing on: runners beat every second and
// gateways renew every five, here when somebody is about to look.
func (s *scripts) beat() {
	if s.w.now.Sub(s.beaten) < state.LostAfter/2 {
		return
	}
	s.beaten = s.w.now
	for _, h := range s.w.hosts {
		if h.State == policy.Waking && s.duties[h.Name] != "" {
			s.must("duty to wake "+h.Name, s.store.RenewWake(s.t.Context(), h.Name, s.duties[h.Name]))
		}
		if h.State != policy.Ready || s.gen[h.Name] == 0 {
			continue
		}
		open := map[string]int{}
		for _, r := range h.Residents {
			open[r.ID] = r.InFlight
		}
		_, err := s.store.Beat(s.t.Context(), h.Name, s.gen[h.Name], true, open)
		s.must("beat of "+h.Name, err)
	}
}

func (s *scripts) place(l *load) {
	model := s.w.catalog[l.model].ID
	refused := slices.ContainsFunc(s.w.hosts, func(h *host) bool { return resident(h, model) != nil }) // by a copy that is closed
	got, err := s.store.Acquire(s.t.Context(), state.Want{
		Gateway: gateway, Model: model, Host: l.host.Name, Revision: s.snapshot().Revision, Operation: l.id, Background: true, Refused: refused,
	})
	s.must("acquire", err)
	if got.Status != "created" || got.Host != l.host.Name {
		s.t.Fatalf("acquire of %s for %s: %+v", l.id, l.host.Name, got)
	}
	if asleep := l.host.State == policy.Asleep; asleep != (got.WakeToken != "") { // one duty for each wake, none else
		s.t.Fatalf("%s is %s and the duty to wake it is %q", l.host.Name, l.host.State, got.WakeToken)
	}
	s.tickets[l] = got.Ticket
	s.changed()
	if got.WakeToken != "" {
		s.duties[l.host.Name] = got.WakeToken
	}
	// A second gateway attaches to the same ticket and gets no duty.
	again, err := s.store.Acquire(s.t.Context(), state.Want{Gateway: "other", Model: model, Background: true, Refused: refused})
	s.must("attach", err)
	if again.Ticket != got.Ticket || again.WakeToken != "" {
		s.t.Fatalf("second gateway: %+v, first %+v", again, got)
	}
}

func (s *scripts) ready(h *host) {
	generation, _, err := s.store.Register(s.t.Context(), state.HostInfo{
		Name: h.Name, Boot: fmt.Sprint(s.w.now.UnixNano()), Addr: "127.0.0.1:1", Devices: h.Devices.String(), Limits: fmt.Sprint(slots), Generation: s.gen[h.Name],
	})
	s.must("register", err)
	if generation <= s.gen[h.Name] { // 17
		s.t.Fatalf("generation of %s went from %d to %d", h.Name, s.gen[h.Name], generation)
	}
	s.gen[h.Name] = generation
	s.changed()
	delete(s.duties, h.Name)
}

func (s *scripts) begin(l *load) {
	s.beat()
	s.must("begin", s.store.Begin(s.t.Context(), l.host.Name, s.gen[l.host.Name], s.tickets[l]))
	s.put(l, policy.ModelLoading)
}

func (s *scripts) put(l *load, st policy.ModelState) {
	m := s.w.catalog[l.model]
	s.must("record", s.store.PutModel(s.t.Context(), l.host.Name, s.gen[l.host.Name], state.ModelPut{
		ID: m.ID, Fields: map[string]string{"type": string(m.Type), "state": string(st), "device": m.Devices.String()},
	}, 0, npu(l.host)))
	s.changed()
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
	s.put(l, policy.ModelLoaded)
	_, err := s.store.Finish(s.t.Context(), l.host.Name, s.gen[l.host.Name], s.tickets[l], state.Outcome{})
	s.must("finish", err)
	delete(s.tickets, l)
	s.changed()
}

func (s *scripts) drop(h *host, id string) {
	s.must("drop", s.store.DropModel(s.t.Context(), h.Name, s.gen[h.Name], id, npu(h), "stopped", false))
	s.changed()
}

// asleep takes the host through all steps of a sleep.
func (s *scripts) asleep(h *host) {
	ctx := s.t.Context()
	s.seen = nil // the commit compares the time of the last activity, which a beat moves
	snap := s.snapshot()
	token, err := s.store.CommitSleep(ctx, h.Name, "sweep", snap.Revision, snap.Hosts[h.Name].Fields["active_ms"])
	s.must("commit", err)
	if _, err := s.store.CommitSleep(ctx, h.Name, "sweep", snap.Revision, "0"); !errors.Is(err, state.ErrStale) { // 2 sweeps, one sleep
		s.t.Fatal("a stale commit: ", err)
	}
	s.must("confirm", s.store.ConfirmSleep(ctx, h.Name, s.gen[h.Name], token))
	s.must("stop", s.store.BeginStop(ctx, h.Name, "sweep", token))
	s.must("end of stop", s.store.EndStop(ctx, h.Name, "sweep", token, ""))
	s.changed()
}

// check compares Redis with the world after an event that changed it.
func (s *scripts) check() {
	if !s.dirty {
		return
	}
	s.dirty = false
	snap := s.snapshot()
	for _, h := range s.w.hosts {
		want := picture(h)
		got := "asleep - -"
		if r := snap.Hosts[h.Name]; r != nil {
			got = recorded(r)
		}
		if got != want {
			s.t.Fatalf("%s: Redis holds %s as %q, want %q", s.w.now.Format("15:04:05.000"), h.Name, got, want)
		}
	}
}

func picture(h *host) string {
	var residents, queue []string
	for _, r := range h.Residents {
		residents = append(residents, r.ID+"="+string(r.State))
	}
	for _, t := range h.Queue {
		queue = append(queue, t.Model.ID)
	}
	return line(string(h.State), residents, queue)
}

func recorded(r *state.HostRecord) string {
	var residents, queue []string
	for id, m := range r.Models {
		residents = append(residents, id+"="+m.State)
	}
	for _, t := range r.Queue {
		if t.State == "queued" {
			queue = append(queue, t.Model)
		}
	}
	return line(r.State, residents, queue)
}

func line(st string, residents, queue []string) string {
	slices.Sort(residents)
	dash := func(list []string) string {
		if len(list) == 0 {
			return "-"
		}
		return strings.Join(list, ",")
	}
	return st + " " + dash(residents) + " " + dash(queue)
}

// hours is how much of the day TestScripts plays.
func hours(t *testing.T) time.Duration {
	text := os.Getenv("REVEILLE_DAY_HOURS")
	if text == "" {
		return 3 * time.Hour
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 24 {
		t.Fatalf("REVEILLE_DAY_HOURS=%q: want 1 to 24", text)
	}
	return time.Duration(n) * time.Hour
}

// TestScripts plays some hours of the day by the real scripts on a real Redis under the virtual clock.
func TestScripts(t *testing.T) {
	compare(t, hours(t), mirrored)
}
