package models

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"reveille/infra/relay"
	"reveille/infra/state"
)

// clients are the connections to runners, by address. Reading takes no lock. The zero value is ready.
type clients struct {
	socket func(host string) string // Config.RunnerSocket

	mu     sync.Mutex // held for changes
	byAddr atomic.Pointer[map[string]*relay.Client]
}

// of returns the client for a host's runner at an address. When it makes one, it closes those for addresses that no host has any
// more.
func (c *clients) of(host, addr string, pool func() *state.Snapshot) *relay.Client {
	if cl := c.known(addr); cl != nil {
		return cl
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl := c.known(addr); cl != nil {
		return cl
	}
	next := map[string]*relay.Client{addr: c.open(host, addr)}
	if old := c.byAddr.Load(); old != nil {
		inUse := map[string]bool{}
		for _, h := range pool().Hosts {
			inUse[h.Addr] = true
		}
		for a, cl := range *old {
			if inUse[a] {
				next[a] = cl
			} else {
				cl.Close() // its open exchanges end by themselves
			}
		}
	}
	c.byAddr.Store(&next)
	return next[addr]
}

// open makes a client. Where the runner's socket does not answer, its address does: the calls are signed for the host, so
// both lead to the same.
func (c *clients) open(host, addr string) *relay.Client {
	cfg := relay.Config{Addr: addr, MaxIdle: 1024}
	path := ""
	if c.socket != nil {
		path = c.socket(host)
	}
	if path != "" {
		cfg.Dial = func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			if nc, err := d.DialContext(ctx, "unix", path); err == nil {
				return nc, nil
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	return relay.New(cfg)
}

func (c *clients) known(addr string) *relay.Client {
	if m := c.byAddr.Load(); m != nil {
		return (*m)[addr]
	}
	return nil
}

func (c *clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.byAddr.Load(); m != nil {
		for _, cl := range *m {
			cl.Close()
		}
	}
}
