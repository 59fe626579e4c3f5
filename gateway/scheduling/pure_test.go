package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// mirrorOnly is a mirror that never changes.
type mirrorOnly struct{ s *state.Snapshot }

func (m mirrorOnly) Snapshot() *state.Snapshot                        { return m.s }
func (m mirrorOnly) Refresh(context.Context) (*state.Snapshot, error) { return m.s, nil }
func (m mirrorOnly) RefreshHosts(context.Context, []string, ...string) (*state.Snapshot, error) {
	return m.s, nil
}

var t0 = time.Unix(1_700_000_000, 0)

func TestBackoff(t *testing.T) {
	tr := backoff[string]{base: 2 * time.Second, max: time.Minute, free: 1, byKey: map[string]*failures{}}
	want := []time.Duration{0, 2, 4, 8, 16, 32, 60, 60}
	for i, w := range want {
		tr.fail("k", string(rune('a'+i)), "", t0)
		tr.fail("k", string(rune('a'+i)), "", t0) // reported twice
		if got := tr.remaining("k", t0); got != w*time.Second {
			t.Errorf("after %d failures: %v, want %v s", i+1, got, w)
		}
	}
	for range 100 {
		tr.fail("k", time.Now().String()+"x", "", t0)
	}
	tr.fail("j", "1", "", t0)
	tr.fail("j", "2", "", t0)
	keys, first := tr.blockedKeys(t0)
	if len(keys) != 2 || !first.Equal(t0.Add(2*time.Second)) {
		t.Errorf("open %v, first %v", keys, first)
	}
	if keys, first := tr.blockedKeys(t0.Add(time.Hour)); keys != nil || !first.IsZero() {
		t.Errorf("an hour later: %v %v", keys, first)
	}
	tr.succeed("k")
	if tr.remaining("k", t0) != 0 {
		t.Error("a window after success")
	}
}

func TestView(t *testing.T) {
	c := testCatalog(t)
	s := &state.Snapshot{Revision: 9, NowMS: t0.UnixMilli(), Hosts: map[string]*state.HostRecord{
		"a": {
			Name: "a", State: "ready", Devices: "cpu npu", Labels: []string{"x"}, Limits: "2", Seats: `{"llm":1}`, Loading: "t1",
			Models: map[string]*state.ModelRecord{"m0": {ID: "m0", State: "loaded", Type: "llm", Device: "npu", InFlight: 2, Memory: 5, Pinned: true}},
			Queue:  []state.TicketRecord{{ID: "t1", Kind: "load", Model: "m1"}, {ID: "t2", Kind: "unload", Model: "m0"}, {ID: "t3", Kind: "load", Model: "m2"}},
		},
		"gone":  {Name: "gone", State: "asleep", Devices: "cpu"}, // has left the models file
		"woken": {Name: "woken", State: "ready", Devices: "?", Limits: "?", Seats: "?"},
	}}
	v := placement.View{Catalog: c, ClosedModel: "m0"}.Pool(s)
	slices.SortFunc(v.Hosts, func(a, b policy.Host) int { return strings.Compare(a.Name, b.Name) })
	var names []string
	for _, h := range v.Hosts {
		names = append(names, h.Name)
	}
	if len(names) != 3 || names[0] != "a" || names[1] != "b" || names[2] != "woken" {
		t.Fatalf("hosts %v", names)
	}
	a := v.Hosts[0]
	if a.Devices != policy.CPU|policy.NPU || a.Limits != policy.Uniform(2) || a.NPUSeats[policy.LLM] != 1 || a.Loading != "m1" || a.InFlight != 2 {
		t.Errorf("a: %+v", a)
	}
	if len(a.Queue) != 1 || a.Queue[0].Model.ID != "m2" || a.Queue[0].Model.Type != policy.LLM {
		t.Errorf("queue: %+v", a.Queue)
	}
	if r := a.Residents[0]; !r.Closed || !r.Pinned || r.Devices != policy.NPU || r.Memory != 5 {
		t.Errorf("resident: %+v", r)
	}
	if v.Hosts[2].Limits != policy.Uniform(1) || v.Hosts[1].State != policy.Asleep {
		t.Errorf("%+v", v.Hosts[1:])
	}
}

func TestAcquisition(t *testing.T) {
	queued := state.Acquired{Status: "created", Ticket: "t1", Host: "a", State: "queued", Position: 2}
	waiting := func() *acquisition {
		n := &acquisition{model: "m0", id: "op"}
		n.onAcquired(t0, queued, nil)
		return n
	}
	statusOf := func(st state.TicketState, f func(*state.TicketRecord)) state.TicketStatus {
		s := state.TicketStatus{Ticket: "t1", Found: true, Record: state.TicketRecord{ID: "t1", State: st, Host: "a", Fields: map[string]string{}}}
		if f != nil {
			f(&s.Record)
		}
		return s
	}
	for name, c := range map[string]struct {
		n    *acquisition
		step func(*acquisition) nextAction
		want action
		code string
	}{
		"created": {&acquisition{}, func(n *acquisition) nextAction { return n.onAcquired(t0, queued, nil) }, actionWait, ""},
		"loaded": {&acquisition{}, func(n *acquisition) nextAction {
			return n.onAcquired(t0, state.Acquired{Status: "loaded", Host: "a"}, nil)
		}, actionFinish, ""},
		"none":              {&acquisition{}, func(n *acquisition) nextAction { return n.onAcquired(t0, state.Acquired{Status: "none"}, nil) }, actionPlace, ""},
		"stale":             {&acquisition{}, func(n *acquisition) nextAction { return n.onAcquired(t0, state.Acquired{}, state.ErrStale) }, actionPlace, ""},
		"stale for ever":    {&acquisition{stale: maxStale}, func(n *acquisition) nextAction { return n.onAcquired(t0, state.Acquired{}, state.ErrStale) }, actionFinish, "state_unavailable"},
		"away once":         {&acquisition{}, func(n *acquisition) nextAction { return n.onAcquired(t0, state.Acquired{}, state.ErrUnavailable) }, actionPlace, ""},
		"away twice":        {&acquisition{unanswered: 1}, func(n *acquisition) nextAction { return n.onAcquired(t0, state.Acquired{}, state.ErrUnavailable) }, actionFinish, "state_unavailable"},
		"a broken script":   {&acquisition{}, func(n *acquisition) nextAction { return n.onAcquired(t0, state.Acquired{}, errors.New("x")) }, actionFinish, "internal_error"},
		"away while moving": {&acquisition{replacing: "t0", ticket: "t0", unanswered: 1}, func(n *acquisition) nextAction { return n.onAcquired(t0, state.Acquired{}, state.ErrUnavailable) }, actionWait, ""},
		"another's news":    {waiting(), func(n *acquisition) nextAction { return n.onTicketState(t0, state.TicketStatus{Ticket: "t0"}) }, actionWait, ""},
		"gone":              {waiting(), func(n *acquisition) nextAction { return n.onTicketState(t0, state.TicketStatus{Ticket: "t1"}) }, actionPlace, ""},
		"dropped":           {waiting(), func(n *acquisition) nextAction { return n.onTicketState(t0, statusOf("dropped", nil)) }, actionPlace, ""},
		"loading":           {waiting(), func(n *acquisition) nextAction { return n.onTicketState(t0, statusOf("loading", nil)) }, actionWait, ""},
		"ready":             {waiting(), func(n *acquisition) nextAction { return n.onTicketState(t0, statusOf("ready", nil)) }, actionFinish, ""},
		"failed": {waiting(), func(n *acquisition) nextAction {
			return n.onTicketState(t0, statusOf("failed", func(r *state.TicketRecord) { r.Code = "disk_full" }))
		}, actionPlace, ""},
		"failed to wake": {waiting(), func(n *acquisition) nextAction {
			return n.onTicketState(t0, statusOf("failed", func(r *state.TicketRecord) { r.WakeError = true }))
		}, actionPlace, ""},
		"the host goes away": {waiting(), func(n *acquisition) nextAction {
			return n.onTicketState(t0, statusOf("failed", func(r *state.TicketRecord) { r.Code = "draining" }))
		}, actionPlace, ""},
		"silent for a while":    {waiting(), func(n *acquisition) nextAction { return n.onStoreError(t0.Add(9*time.Second), state.ErrUnavailable) }, actionWait, ""},
		"silent for too long":   {waiting(), func(n *acquisition) nextAction { return n.onStoreError(t0.Add(11*time.Second), state.ErrUnavailable) }, actionFinish, "state_unavailable"},
		"silent, but no ticket": {&acquisition{}, func(n *acquisition) nextAction { return n.onStoreError(t0.Add(time.Hour), state.ErrUnavailable) }, actionWait, ""},
	} {
		v := c.step(c.n)
		code := ""
		if v.err != nil {
			code = v.err.Code
		}
		if v.do != c.want || code != c.code {
			t.Errorf("%s: got %+v (%s), want action %d (%s)", name, v, code, c.want, c.code)
		}
	}

	n := waiting()
	before := n.acquireRequest("gw", "a", 1, false).Operation
	n.onTicketState(t0, state.TicketStatus{Ticket: "t1"})
	if after := n.acquireRequest("gw", "a", 1, false).Operation; after == before || n.ticket != "" {
		t.Errorf("a new intent has the operation id of the old one: %s", after)
	}
}

func emptyHost(name string, st policy.HostState) *state.HostRecord {
	return &state.HostRecord{Name: name, State: st, Devices: "cpu npu", Limits: "1", Models: map[string]*state.ModelRecord{}}
}

func snapshotWith(hosts ...*state.HostRecord) *state.Snapshot {
	s := &state.Snapshot{Revision: 1, NowMS: t0.UnixMilli(), Taken: t0, Hosts: map[string]*state.HostRecord{}}
	for _, h := range hosts {
		s.Hosts[h.Name] = h
	}
	return s
}

// A group does not ask a host again that is being reclaimed. Another host gets the model; without one, the group
// answers with that error at once.
func TestInterruptedHost(t *testing.T) {
	c := testCatalog(t)
	told := func() *acquisition {
		n := &acquisition{model: "m0", id: "op"}
		n.onAcquired(t0, state.Acquired{Status: "created", Ticket: "t1", Host: "a", State: "queued"}, nil)
		v := n.onTicketState(t0, state.TicketStatus{Ticket: "t1", Found: true, Record: state.TicketRecord{
			ID: "t1", State: "failed", Host: "a", Code: "host_interrupted", Message: "going", Fields: map[string]string{},
		}})
		if v.do != actionPlace || n.ticket != "" {
			t.Fatalf("%+v", v)
		}
		return n
	}
	n := told()
	if v := n.chooseHost(snapshotWith(emptyHost("a", "draining"), emptyHost("b", "ready")), c, nil, time.Time{}, ""); v.do != actionAcquire || v.host != "b" {
		t.Errorf("placed on %q, %+v", v.host, v)
	}
	n = told()
	v := n.chooseHost(snapshotWith(emptyHost("a", "draining"), emptyHost("b", "asleep")), c, []string{"b"}, t0.Add(time.Second), "")
	if v.do != actionPlace || !v.at.Equal(t0.Add(time.Second)) {
		t.Errorf("with another host that may come: %+v", v)
	}
	n = told()
	n.interruptedHosts = append(n.interruptedHosts, "b") // the catalog's other host
	v = n.chooseHost(snapshotWith(emptyHost("a", "draining"), emptyHost("b", "draining")), c, nil, time.Time{}, "")
	if v.do != actionFinish || v.err == nil || v.err.Code != "host_interrupted" || v.err.Status != 503 || v.err.Message != "going" {
		t.Errorf("with no other host: %+v", v)
	}
	if v := n.chooseHost(snapshotWith(emptyHost("a", "asleep"), emptyHost("b", "draining")), c, nil, time.Time{}, ""); v.do != actionAcquire || v.host != "a" {
		t.Errorf("a machine that is gone can come again: %q, %+v", v.host, v)
	}
	if !slices.Contains(n.interruptedHosts, "a") {
		t.Error(n.interruptedHosts)
	}
}

// If Redis loses a ticket, the group asks again at its host, which may be loading the model; elsewhere it would be a
// second copy.
func TestLostTicket(t *testing.T) {
	c := testCatalog(t)
	n := &acquisition{model: "m0", id: "op"}
	n.onAcquired(t0, state.Acquired{Status: "created", Ticket: "t1", Host: "b", State: "queued"}, nil)
	if v := n.onTicketState(t0, state.TicketStatus{Ticket: "t1"}); v.do != actionPlace {
		t.Fatalf("%+v", v)
	}
	both := snapshotWith(emptyHost("a", "ready"), emptyHost("b", "ready"))
	if host := n.chooseHost(both, c, nil, time.Time{}, "").host; host != "b" {
		t.Errorf("placed on %q", host)
	}
	if host := n.chooseHost(both, c, []string{"b"}, time.Time{}, "").host; host != "a" {
		t.Errorf("placed on %q, whose engines do not start", host)
	}
	if host := n.chooseHost(snapshotWith(emptyHost("a", "ready"), emptyHost("b", "lost")), c, nil, time.Time{}, "").host; host != "a" {
		t.Errorf("placed on %q, which is lost", host)
	}
	n.onAcquired(t0, state.Acquired{Status: "created", Ticket: "t2", Host: "b", State: "queued"}, nil)
	n.onTicketState(t0, state.TicketStatus{Ticket: "t2", Found: true, Record: state.TicketRecord{ID: "t2", State: "dropped"}})
	if host := n.chooseHost(both, c, nil, time.Time{}, "").host; host != "a" {
		t.Errorf("placed on %q after its ticket was dropped", host)
	}
}

// TestLargePoolSpreads: in a large pool, models choose different hosts among the first with a free slot. Each model
// always chooses the same host, and another once that host has changed too fast. The choice is one that the whole pool
// allows.
func TestLargePoolSpreads(t *testing.T) {
	text := "models:\n"
	for i := range 40 {
		text += fmt.Sprintf("  m%d: {type: llm, recipe: standin, device: cpu, memory: 10}\n", i)
	}
	c, _, err := catalog.Parse("models.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	const hosts, full = 400, 70
	s := &state.Snapshot{NowMS: t0.UnixMilli(), Taken: t0, Hosts: map[string]*state.HostRecord{}}
	for i := range hosts {
		h := &state.HostRecord{Name: fmt.Sprintf("h%03d", i), State: policy.Ready, Devices: "cpu", Limits: "1", Addr: "a:1", Models: map[string]*state.ModelRecord{}}
		if i < full { // busy
			h.Models["other"] = &state.ModelRecord{ID: "other", Host: h.Name, State: policy.ModelLoaded, Type: "llm", Device: "cpu", InFlight: 1}
		}
		s.Hosts[h.Name] = h
	}
	chosen := map[string]bool{}
	for i := range 40 {
		n := &acquisition{model: fmt.Sprint("m", i)}
		v := n.chooseHost(s, c, nil, time.Time{}, "")
		host := v.host
		if v.do != actionAcquire || host < "h070" || host > "h085" {
			t.Fatalf("%s goes to %q, %+v", n.model, host, v)
		}
		if again := n.chooseHost(s, c, nil, time.Time{}, "").host; again != host {
			t.Errorf("%s goes to %s and then to %s", n.model, host, again)
		}
		chosen[host] = true
		n.changedHosts = []string{host}
		if other := n.chooseHost(s, c, nil, time.Time{}, "").host; other == host || other < "h070" || other > "h086" {
			t.Errorf("%s goes to %s although %s changes too fast", n.model, other, host)
		}
		if other := n.chooseHost(s, c, []string{host}, time.Time{}, "").host; other == host {
			t.Errorf("%s goes to %s, which is avoided", n.model, other)
		}
	}
	stays := &acquisition{model: "m0"}
	if host := stays.chooseHost(s, c, nil, time.Time{}, "h399").host; host != "h399" {
		t.Errorf("a host that was read and has a free slot is left for %s", host)
	}
	if host := stays.chooseHost(s, c, nil, time.Time{}, "h010").host; host < "h070" {
		t.Errorf("%s has no free slot", host)
	}
	knows := &acquisition{model: "m0", saved: map[string]int64{"h010": 9000, "h300": 10, "h301": 20}}
	if host := knows.chooseHost(s, c, nil, time.Time{}, "").host; host != "h301" {
		t.Errorf("it goes to %s, not where most of its conversations are saved and a slot is free", host)
	}
	if len(chosen) < 10 {
		t.Errorf("40 models went to %d hosts", len(chosen))
	}
	for _, h := range s.Hosts {
		h.Models["other"] = &state.ModelRecord{ID: "other", Host: h.Name, State: policy.ModelLoaded, Type: "llm", Device: "cpu", UsedMS: t0.UnixMilli()}
	}
	s.Hosts["h333"].Models["other"].UsedMS--
	n := &acquisition{model: "m1"}
	if v := n.chooseHost(s, c, nil, time.Time{}, ""); v.do != actionAcquire || v.host != "h333" {
		t.Errorf("without a free slot it goes to %q, %+v, not where the victim was used longest ago", v.host, v)
	}
	if names := s.Names(); len(names) != hosts || !slices.IsSorted(names) {
		t.Errorf("%d names", len(names))
	}
}

// Every gateway reports a load's progress, whoever waits for it.
func TestProgressOf(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		r, other := start(t, p, nil), start(t, p, nil)
		w := enter(t, r.Gate, WaitRequest{Model: "m1"})
		time.Sleep(100 * time.Millisecond)
		q := enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(900 * time.Millisecond)
		for model, waiter := range map[string]*Waiter{"m1": w, "m0": q} {
			want := waiter.Progress()
			for name, g := range map[string]*Gate{"its waiter's": r.Gate, "another": other.Gate} {
				got, ok := g.ProgressOf(model)
				if !ok || got.Stage != want.Stage || got.Host != want.Host || got.Position != want.Position {
					t.Errorf("%s gate tells of %s %+v, %v; its waiter hears %+v", name, model, got, ok, want)
				}
			}
			if got, _ := r.ProgressOf(model); got.Waited != want.Waited {
				t.Errorf("%s: waited %v, want %v", model, got.Waited, want.Waited)
			}
		}
		if got, ok := r.ProgressOf("m2"); ok {
			t.Errorf("of a model that nobody wants: %+v", got)
		}
	})
}

// The oldest of a model's loads counts, and its times follow the store's clock.
func TestPending(t *testing.T) {
	ticket := func(id, kind, model string, st state.TicketState, created int64) state.TicketRecord {
		return state.TicketRecord{ID: id, Kind: kind, Model: model, State: st, Created: created, Fields: map[string]string{"begun_ms": "70000"}}
	}
	s := &state.Snapshot{NowMS: 100_000, Taken: t0, Hosts: map[string]*state.HostRecord{
		"a": {Queue: []state.TicketRecord{ticket("1", "load", "x", "loading", 1), ticket("2", "unload", "m", "queued", 2), ticket("3", "load", "m", "queued", 60_000)}},
		"b": {Queue: []state.TicketRecord{ticket("4", "load", "m", "loading", 50_000)}},
		"c": {Queue: []state.TicketRecord{ticket("5", "load", "m", "queued", 50_000)}},
	}}
	n, waited := pending(s, "m", t0.Add(time.Second))
	if n == nil || n.ticket != "4" || n.host != "b" || n.state != "loading" || n.position != 0 || waited != 51*time.Second || !n.loadingSince.Equal(t0.Add(-30*time.Second)) {
		t.Errorf("got %+v after %v", n, waited)
	}
	delete(s.Hosts, "b")
	delete(s.Hosts, "c")
	if n, waited := pending(s, "m", t0); n == nil || n.ticket != "3" || n.position != 2 || waited != 40*time.Second || !n.loadingSince.IsZero() {
		t.Errorf("got %+v after %v", n, waited)
	}
	if n, _ := pending(s, "nobody", t0); n != nil {
		t.Errorf("got %+v", n)
	}
}

// A queued load whose weights are being pulled reports the progress and no ETA.
func TestProgressOfAPull(t *testing.T) {
	ticket := state.TicketRecord{ID: "1", Kind: "load", Model: "m", State: "queued", Pulling: true, Pulled: state.Pulled{Done: 3, Total: 4}}
	s := &state.Snapshot{Hosts: map[string]*state.HostRecord{"a": {State: "ready", Queue: []state.TicketRecord{ticket}}}}
	n := &acquisition{model: "m", ticket: "1", host: "a", state: "queued", position: 1}
	known := &estimates{load: map[string]time.Duration{"m": time.Second}, wake: map[string]time.Duration{}}
	if got, want := progressOf(n, s, known, t0), (api.LoadingProgress{Model: "m", Stage: StagePulling, Host: "a", Position: 1, BytesDone: 3, BytesTotal: 4}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	s.Hosts["a"].State = "waking" // its next runner pulls again
	if got := progressOf(n, s, known, t0); got.Stage != StageWaking || got.BytesTotal != 0 {
		t.Errorf("of a host that is down: %+v", got)
	}
}

// A pull without a load takes no slot, so placement ignores it. A request for the model goes to the host that pulls its
// weights.
func TestWeightsAloneTakeNoSlot(t *testing.T) {
	s := &state.Snapshot{Revision: 1, NowMS: t0.UnixMilli(), Taken: t0, Hosts: map[string]*state.HostRecord{
		"a": {Name: "a", State: "ready", Devices: "cpu", Limits: "1", Models: map[string]*state.ModelRecord{}},
		"b": {
			Name: "b", State: "ready", Devices: "cpu", Limits: "1", Models: map[string]*state.ModelRecord{},
			Queue: []state.TicketRecord{{ID: "t1", Kind: "load", Model: "m1", State: "queued", PullOnly: true}},
		},
	}}
	c := testCatalog(t)
	for _, h := range (placement.View{Catalog: c}).Pool(s).Hosts {
		if len(h.Queue) != 0 {
			t.Errorf("queue of %s: %+v", h.Name, h.Queue)
		}
	}
	n := &acquisition{model: "m1", id: "op"}
	if v := n.chooseHost(s, c, nil, t0, ""); v.do != actionAcquire || v.host != "b" {
		t.Errorf("placed on %q, %+v", v.host, v)
	}
}
