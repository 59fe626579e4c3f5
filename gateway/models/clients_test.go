package models

import (
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"reveille/infra/relay"
	"reveille/infra/state"
)

// TestClientsFollowThePool: clients of hosts that are gone are closed.
func TestClientsFollowThePool(t *testing.T) {
	var c clients
	pool := &state.Snapshot{Hosts: map[string]*state.HostRecord{"a": {Addr: "a:1"}, "b": {Addr: "b:1"}}}
	see := func() *state.Snapshot { return pool }
	a, b := c.of("a", "a:1", see), c.of("b", "b:1", see)
	if c.of("a", "a:1", see) != a {
		t.Error("two clients of one address")
	}
	pool = &state.Snapshot{Hosts: map[string]*state.HostRecord{"a": {Addr: "a:2"}, "b": {Addr: "b:1"}}}
	_ = c.of("a", "a:2", see)
	if c.known("a:1") != nil || c.known("b:1") != b {
		t.Error("the pool is not followed")
	}
	if _, err := a.Do(nil, &relay.Request{Method: "GET", Path: []byte("/")}); err == nil {
		t.Error("a client of a host that is gone works")
	}
	c.close()
}

// TestClientsOfThisMachine: a runner's socket is used where it answers, and its address where the runner was killed.
func TestClientsOfThisMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	near, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	near.SetUnlinkOnClose(false)
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var servers sync.WaitGroup
	serve := func(ln net.Listener, status int) {
		servers.Go(func() {
			_ = http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		})
	}
	serve(near, 201)
	serve(far, 202)
	c := clients{socket: func(host string) string { return map[string]string{"local": path}[host] }}
	ask := func(host string) int {
		client := c.open(host, far.Addr().String())
		defer client.Close()
		status, _, err := client.Fetch(t.Context(), &relay.Request{Method: "GET", Path: []byte("/")}, "", nil, 1)
		if err != nil {
			t.Error(err)
		}
		return status
	}
	if near, far := ask("local"), ask("other"); near != 201 || far != 202 {
		t.Errorf("%d and %d", near, far)
	}
	near.Close()
	if status := ask("local"); status != 202 {
		t.Errorf("%d from a runner that was killed", status)
	}
	far.Close()
	servers.Wait()
}
