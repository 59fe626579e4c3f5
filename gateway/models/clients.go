package models

import (
	"sync"
	"sync/atomic"

	"reveille/infra/relay"
	"reveille/infra/state"
)

// clients are the connections to runners, by address. Reading takes no lock. The zero value is ready.
type clients struct {
	mu     sync.Mutex // held for changes
	byAddr atomic.Pointer[map[string]*relay.Client]
}

// of returns the client for the runner at an address. When it makes one, it closes those for addresses that no host has any
// more.
func (c *clients) of(addr string, pool func() *state.Snapshot) *relay.Client {
	if cl := c.known(addr); cl != nil {
		return cl
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl := c.known(addr); cl != nil {
		return cl
	}
	next := map[string]*relay.Client{addr: relay.New(relay.Config{Addr: addr, MaxIdle: 1024})}
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
