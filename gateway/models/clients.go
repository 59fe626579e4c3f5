package models

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"reveille/gateway/api"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// A runner is where a gateway reaches one: an address, and the fingerprint of its certificate if it speaks TLS.
type runner struct{ addr, fingerprint string }

// Runners calls the pool's runners and keeps the connections to them. Make it with NewRunners and Close it at the end;
// it is safe for concurrent use.
type Runners struct {
	signer   *rpc.Signer
	pool     func() *state.Snapshot
	mu       sync.Mutex // held for changes
	byRunner sync.Map   // *relay.Client by runner
}

// NewRunners makes the calls to runners. pool returns the hosts that there are, and must be cheap.
func NewRunners(signer *rpc.Signer, pool func() *state.Snapshot) *Runners {
	return &Runners{signer: signer, pool: pool}
}

// Client returns the client for the runner at an address, with the fingerprint of its certificate if it speaks TLS. When
// it makes one, it closes those for runners that no host has any more.
func (c *Runners) Client(addr, fingerprint string) *relay.Client {
	r := runner{addr, fingerprint}
	if cl, known := c.byRunner.Load(r); known {
		return cl.(*relay.Client)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl, known := c.byRunner.Load(r); known {
		return cl.(*relay.Client)
	}
	inUse := map[any]bool{}
	for _, h := range c.pool().Hosts {
		inUse[runner{h.Addr, h.TLS}] = true
	}
	c.byRunner.Range(func(a, old any) bool {
		if !inUse[a] {
			c.byRunner.Delete(a)
			old.(*relay.Client).Close() // its open exchanges end by themselves
		}
		return true
	})
	cfg := relay.Config{Addr: r.addr, MaxIdle: 1024}
	if r.fingerprint != "" {
		dialer := &tls.Dialer{Config: rpc.Pin(r.fingerprint)}
		cfg.Dial = func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", r.addr) }
	}
	cl := relay.New(cfg)
	c.byRunner.Store(r, cl)
	return cl
}

// Close closes the connections.
func (c *Runners) Close() {
	c.byRunner.Range(func(_, cl any) bool { cl.(*relay.Client).Close(); return true })
}

// SendBack implements scheduling.Config.SendBack with rpc.PathSendBack.
func (c *Runners) SendBack(ctx context.Context, host *state.HostRecord, model string, n int) error {
	path := rpc.PathSendBack + "?n=" + strconv.Itoa(n) + "&model=" + url.QueryEscape(model)
	_, err := c.Fetch(ctx, "POST", host, path, "", 1<<10)
	return err
}

// askWait is the timeout of a call to which a runner responds from memory.
const askWait = 10 * time.Second

// Fetch calls a runner as Ask does and returns the body of its response, which may have at most max bytes. A status
// other than 200 is an error. The call ends with ctx, with an error that matches relay.ErrClientGone.
func (c *Runners) Fetch(
	ctx context.Context, method string, h *state.HostRecord, path, id string, max int,
) ([]byte, error) {
	var canceler relay.Canceler
	stop := context.AfterFunc(ctx, func() { canceler.Cancel(relay.ErrClientGone) })
	defer stop()
	resp, err := c.Ask(&canceler, method, h, path, id, askWait)
	if err != nil {
		return nil, err
	}
	defer resp.Close()
	if status := resp.Status(); status != 200 {
		return nil, fmt.Errorf("runner %s responded with status %d", h.Name, status)
	}
	return resp.AppendBody(nil, max)
}

// Ask calls a runner for the request with the given id, "" for none, and waits at most firstByte for the first byte of
// its response; 0 is no limit. The caller closes the response. An error is one for the client.
func (c *Runners) Ask(canceler *relay.Canceler, method string, host *state.HostRecord, path, id string, firstByte time.Duration) (*relay.Response, error) {
	for corrected := false; ; corrected = true {
		sign := c.signer.Sign(rpc.Call{Method: method, Path: path, Host: host.Name})
		req := &relay.Request{Method: method, Path: []byte(path), FirstByte: firstByte, Fields: []relay.Field{
			{Name: rpc.HeaderAuth, Value: []byte(sign)},
		}}
		if id != "" {
			req.Add(rpc.HeaderRequest, []byte(id))
		}
		resp, err := c.Client(host.Addr, host.TLS).Do(canceler, req)
		if errors.Is(err, relay.ErrCanceled) {
			return nil, relay.ErrClientGone
		}
		if err != nil {
			return nil, api.New(api.HostUnreachable, "The model's host could not be reached. Retry the request.").WithCause(err)
		}
		if resp.Status() != rpc.StatusRefused {
			return resp, nil
		}
		reason := string(resp.Header(rpc.HeaderRefused))
		runner, bad := strconv.ParseInt(string(resp.Header(rpc.HeaderTime)), 10, 64)
		_ = resp.Close()
		if reason == rpc.RefusedAuth && bad == nil && !corrected {
			c.signer.Correct(host.Name, runner)
			continue
		}
		return nil, api.New(api.InternalError, "The model's host does not accept this gateway.").WithCause(errors.New("runner " + host.Name + " refused: " + reason))
	}
}
