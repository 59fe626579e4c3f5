package models

import (
	"testing"

	"reveille/infra/relay"
	"reveille/infra/state"
)

// TestClientsFollowThePool: clients of hosts that are gone are closed.
func TestClientsFollowThePool(t *testing.T) {
	var c clients
	pool := &state.Snapshot{Hosts: map[string]*state.HostRecord{"a": {Addr: "a:1"}, "b": {Addr: "b:1"}}}
	see := func() *state.Snapshot { return pool }
	a, b := c.of("a:1", see), c.of("b:1", see)
	if c.of("a:1", see) != a {
		t.Error("two clients of one address")
	}
	pool = &state.Snapshot{Hosts: map[string]*state.HostRecord{"a": {Addr: "a:2"}, "b": {Addr: "b:1"}}}
	_ = c.of("a:2", see)
	if _, known := c.byAddr.Load("a:1"); known || c.of("b:1", see) != b {
		t.Error("the pool is not followed")
	}
	if _, err := a.Do(nil, &relay.Request{Method: "GET", Path: []byte("/")}); err == nil {
		t.Error("a client of a host that is gone works")
	}
	c.close()
}
