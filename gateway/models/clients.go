package models

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"reveille/gateway/api"
	"reveille/infra/relay"
	"reveille/infra/rpc"
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

// AskWait bounds a call that a runner answers from memory.
const AskWait = 10 * time.Second

// Ask calls a runner for the request with the given id, "" for none, and waits at most firstByte for the first byte of its
// response; 0 is no limit. The caller closes the response. An error is one for the client.
func (d *Directory) Ask(call *relay.Call, method string, host *state.HostRecord, path, id string, firstByte time.Duration) (*relay.Response, error) {
	for corrected := false; ; corrected = true {
		sign := d.cfg.Signer.Sign(rpc.Call{Method: method, Path: path, Host: host.Name})
		req := &relay.Request{Method: method, Path: []byte(path), FirstByte: firstByte, Fields: []relay.Field{
			{Name: rpc.HeaderAuth, Value: []byte(sign)},
		}}
		if id != "" {
			req.Add(rpc.HeaderRequest, []byte(id))
		}
		resp, err := d.Client(host.Addr).Do(call, req)
		if errors.Is(err, relay.ErrCancelled) {
			return nil, relay.ErrGone
		}
		if err != nil {
			return nil, api.New(api.HostUnreachable, "The model's host could not be reached; try again.").WithCause(err)
		}
		if resp.Status() != rpc.StatusRefused {
			return resp, nil
		}
		reason := string(resp.Header(rpc.HeaderRefused))
		runner, bad := strconv.ParseInt(string(resp.Header(rpc.HeaderTime)), 10, 64)
		_ = resp.Close()
		if reason == rpc.RefusedAuth && bad == nil && !corrected {
			d.cfg.Signer.Correct(host.Name, runner)
			continue
		}
		return nil, api.New(api.InternalError, "The model's host does not accept this gateway.").WithCause(errors.New("runner " + host.Name + " refused: " + reason))
	}
}
