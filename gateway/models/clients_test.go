package models

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// TestClientsFollowThePool: clients of hosts that are gone are closed.
func TestClientsFollowThePool(t *testing.T) {
	pool := &state.Snapshot{Hosts: map[string]*state.HostRecord{"a": {Addr: "a:1"}, "b": {Addr: "b:1"}}}
	c := NewRunners(nil, func() *state.Snapshot { return pool })
	a, b := c.Client("a:1", ""), c.Client("b:1", "")
	if c.Client("a:1", "") != a {
		t.Error("two clients of one address")
	}
	pool = &state.Snapshot{Hosts: map[string]*state.HostRecord{"a": {Addr: "a:2"}, "b": {Addr: "b:1"}}}
	_ = c.Client("a:2", "")
	if _, known := c.byRunner.Load(runner{"a:1", ""}); known || c.Client("b:1", "") != b {
		t.Error("the pool is not followed")
	}
	if _, err := a.Do(nil, &relay.Request{Method: "GET", Path: []byte("/")}); err == nil {
		t.Error("a client of a host that is gone works")
	}
	c.Close()
}

// TestClientsPinCertificates: a runner that speaks TLS is reached only if it has the certificate that it registered.
func TestClientsPinCertificates(t *testing.T) {
	cert, fingerprint, err := rpc.NewCertificate()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	c := NewRunners(nil, func() *state.Snapshot { return &state.Snapshot{} })
	defer c.Close()
	ask := func(fingerprint string) error {
		cl := c.Client(server.Listener.Addr().String(), fingerprint)
		resp, err := cl.Do(nil, &relay.Request{Method: "GET", Path: []byte("/"), FirstByte: 10 * time.Second})
		if err != nil {
			return err
		}
		defer resp.Close()
		if body, err := resp.AppendBody(nil, 100); err != nil || string(body) != "hello" {
			t.Errorf("%q, %v", body, err)
		}
		return nil
	}
	if err := ask(fingerprint); err != nil {
		t.Error(err)
	}
	if err := ask(strings.Repeat("0", 64)); !errors.Is(err, relay.ErrUnreachable) {
		t.Errorf("a runner with another certificate: %v", err)
	}
}
