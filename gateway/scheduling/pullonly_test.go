package scheduling

import (
	"testing"

	"reveille/infra/placement"
	"reveille/infra/state"
)

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
	if host, v := n.chooseHost(s, c, nil, t0, ""); host != "b" || v != nil {
		t.Errorf("placed on %q, %+v", host, v)
	}
}
