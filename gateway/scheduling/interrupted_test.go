package scheduling

import (
	"slices"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

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

// A group does not ask a host again that is being taken away. Another host gets the model; without one, the group
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
	if host, v := n.chooseHost(snapshotWith(emptyHost("a", "draining"), emptyHost("b", "ready")), c, nil, time.Time{}, ""); host != "b" || v != nil {
		t.Errorf("placed on %q, %+v", host, v)
	}
	n = told()
	_, v := n.chooseHost(snapshotWith(emptyHost("a", "draining"), emptyHost("b", "asleep")), c, []string{"b"}, t0.Add(time.Second), "")
	if v == nil || v.do != actionPlace || !v.at.Equal(t0.Add(time.Second)) {
		t.Errorf("with another host that may come: %+v", v)
	}
	n = told()
	n.interruptedHosts = append(n.interruptedHosts, "b") // the catalogue's other host
	_, v = n.chooseHost(snapshotWith(emptyHost("a", "draining"), emptyHost("b", "draining")), c, nil, time.Time{}, "")
	if v == nil || v.do != actionFinish || v.err == nil || v.err.Code != "host_interrupted" || v.err.Status != 503 || v.err.Message != "going" {
		t.Errorf("with no other host: %+v", v)
	}
	if host, v := n.chooseHost(snapshotWith(emptyHost("a", "asleep"), emptyHost("b", "draining")), c, nil, time.Time{}, ""); host != "a" || v != nil {
		t.Errorf("a machine that is gone can come again: %q, %+v", host, v)
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
	if host, _ := n.chooseHost(both, c, nil, time.Time{}, ""); host != "b" {
		t.Errorf("placed on %q", host)
	}
	if host, _ := n.chooseHost(both, c, []string{"b"}, time.Time{}, ""); host != "a" {
		t.Errorf("placed on %q, whose engines do not start", host)
	}
	if host, _ := n.chooseHost(snapshotWith(emptyHost("a", "ready"), emptyHost("b", "lost")), c, nil, time.Time{}, ""); host != "a" {
		t.Errorf("placed on %q, which is lost", host)
	}
	n.onAcquired(t0, state.Acquired{Status: "created", Ticket: "t2", Host: "b", State: "queued"}, nil)
	n.onTicketState(t0, state.TicketStatus{Ticket: "t2", Found: true, Record: state.TicketRecord{ID: "t2", State: "dropped"}})
	if host, _ := n.chooseHost(both, c, nil, time.Time{}, ""); host != "a" {
		t.Errorf("placed on %q after its ticket was dropped", host)
	}
}
