package scheduling

import (
	"testing"
	"time"

	"reveille/infra/state"
)

// A queued load whose weights are being pulled reports the progress and no ETA.
func TestProgressOfAPull(t *testing.T) {
	ticket := state.TicketRecord{ID: "1", Kind: "load", Model: "m", State: "queued", Pulling: true, Pulled: state.Pulled{Done: 3, Total: 4}}
	s := &state.Snapshot{Hosts: map[string]*state.HostRecord{"a": {State: "ready", Queue: []state.TicketRecord{ticket}}}}
	n := &acquisition{model: "m", ticket: "1", host: "a", state: "queued", position: 1}
	known := &estimates{load: map[string]time.Duration{"m": time.Second}, wake: map[string]time.Duration{}}
	if got, want := progressOf(n, s, known, t0), (Progress{Stage: StagePulling, Host: "a", Position: 1, BytesDone: 3, BytesTotal: 4}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	s.Hosts["a"].State = "waking" // its next runner pulls again
	if got := progressOf(n, s, known, t0); got.Stage != StageWaking || got.BytesTotal != 0 {
		t.Errorf("of a host that is down: %+v", got)
	}
}
