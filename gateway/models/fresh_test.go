package models

import (
	"testing"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// What a lost host held is not known to be there, so its model can be loaded elsewhere.
func TestStateOfModelOnLostHost(t *testing.T) {
	h := &state.HostRecord{State: policy.Lost, Models: map[string]*state.ModelRecord{"m": {State: policy.ModelLoaded}}}
	s := &state.Snapshot{Hosts: map[string]*state.HostRecord{"h": h}}
	if got := stateIn(s, "m"); got != "unloaded" {
		t.Errorf("on a lost host: %s", got)
	}
	h.Queue = []state.TicketRecord{{Kind: "load", Model: "m", State: state.TicketQueued}}
	if got := stateIn(s, "m"); got != "queued" {
		t.Errorf("with a load there: %s", got)
	}
	if h.State = policy.Ready; stateIn(s, "m") != "loaded" {
		t.Errorf("on a ready host: %s", stateIn(s, "m"))
	}
}
