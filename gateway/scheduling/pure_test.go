package scheduling

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

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

func TestTrips(t *testing.T) {
	tr := backoff{base: 2 * time.Second, max: time.Minute, free: 1, byKey: map[string]*failureWindow{}}
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
	keys, first := tr.waitingKeys(t0)
	if len(keys) != 2 || !first.Equal(t0.Add(2*time.Second)) {
		t.Errorf("open %v, first %v", keys, first)
	}
	if keys, first := tr.waitingKeys(t0.Add(time.Hour)); keys != nil || !first.IsZero() {
		t.Errorf("an hour later: %v %v", keys, first)
	}
	tr.succeed("k")
	if tr.remaining("k", t0) != 0 {
		t.Error("a window after success")
	}
}

func TestRebuild(t *testing.T) {
	snap := func(epoch string, ready ...string) *state.Snapshot {
		s := &state.Snapshot{Epoch: epoch, Taken: t0, Hosts: map[string]*state.HostRecord{}}
		for _, h := range ready {
			s.Hosts[h] = &state.HostRecord{Name: h, State: "ready"}
		}
		return s
	}
	var r recoveryHold
	r.observe(&state.Snapshot{}, t0)
	r.observe(snap(""), t0)
	if r.active(t0) {
		t.Error("an empty pool has nothing to wait for")
	}
	r.observe(snap("1", "a", "b"), t0)
	if r.active(t0) {
		t.Error("the first epoch is no loss")
	}
	r.observe(snap(""), t0)
	if !r.active(t0) {
		t.Fatal("a lost epoch is not noticed")
	}
	r.observe(snap("2", "a"), t0.Add(time.Second))
	if !r.active(t0.Add(time.Second)) {
		t.Error("b is missing")
	}
	if r.active(t0.Add(12 * time.Second)) {
		t.Error("waits for ever")
	}
	r.observe(snap("2", "a", "b"), t0.Add(2*time.Second))
	if r.active(t0.Add(2 * time.Second)) {
		t.Error("all have reported")
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
		"gone":  {Name: "gone", State: "asleep", Devices: "cpu"},
		"woken": {Name: "woken", State: "asleep", Driver: "wol", Devices: "?", Limits: "?", Seats: "?"},
	}}
	v := placement.View{Catalog: c, Refused: "m0"}.Pool(s)
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

func TestNeed(t *testing.T) {
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
		}, actionFinish, "disk_full"},
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
	before := n.want("gw", "a", 1, false).Operation
	n.onTicketState(t0, state.TicketStatus{Ticket: "t1"})
	if after := n.want("gw", "a", 1, false).Operation; after == before || n.ticket != "" {
		t.Errorf("a new intent has the operation id of the old one: %s", after)
	}
}

func TestSwaps(t *testing.T) {
	var s swaps
	for _, c := range []struct {
		after time.Duration // the first one
		notes int
		want  int // in the last minute
	}{
		{0, 1, 1}, {0, 1, 2}, {30 * time.Second, 1, 3}, {59 * time.Second, 0, 3}, {60 * time.Second, 0, 1}, {55 * time.Second, 1, 2}, // a clock that goes back
		{119 * time.Second, 0, 1}, {10 * time.Minute, 0, 0}, {10 * time.Minute, 2, 2},
	} {
		now := t0.Add(c.after)
		for range c.notes {
			s.record(now)
		}
		if got := s.lastMinute(now); got != c.want {
			t.Errorf("%v after: %d in a minute, want %d", c.after, got, c.want)
		}
	}
	if s.total != 6 {
		t.Errorf("%d in all, want 6", s.total)
	}
}

func TestKindOf(t *testing.T) {
	if k := kindOf("slots_pinned_error", true); k.Status() != 409 {
		t.Errorf("a management call gets %d", k.Status())
	}
	if k := kindOf("slots_pinned_error", false); k.Status() != 503 {
		t.Errorf("a request gets %d", k.Status())
	}
	if k := kindOf("no such code", false); k.Code() != "model_load_error" {
		t.Errorf("got %v", k)
	}
}
