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

// clients are the connections to runners. The zero value is ready.
type clients struct {
	mu       sync.Mutex // held for changes
	byRunner sync.Map   // *relay.Client by runner
}

// of returns the client for a runner. When it makes one, it closes those for runners that no host has any more.
func (c *clients) of(r runner, pool func() *state.Snapshot) *relay.Client {
	if cl, known := c.byRunner.Load(r); known {
		return cl.(*relay.Client)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl, known := c.byRunner.Load(r); known {
		return cl.(*relay.Client)
	}
	inUse := map[any]bool{}
	for _, h := range pool().Hosts {
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

func (c *clients) close() {
	c.byRunner.Range(func(_, cl any) bool { cl.(*relay.Client).Close(); return true })
}

// SendBack asks a runner for up to n of the requests that wait for their turn at a model's engine (rpc.PathSendBack).
func (d *Registry) SendBack(ctx context.Context, host *state.HostRecord, model string, n int) error {
	var canceler relay.Canceler
	stop := context.AfterFunc(ctx, func() { canceler.Cancel(relay.ErrClientGone) })
	defer stop()
	path := rpc.PathSendBack + "?n=" + strconv.Itoa(n) + "&model=" + url.QueryEscape(model)
	resp, err := d.Ask(&canceler, "POST", host, path, "", AskWait)
	if err != nil {
		return err
	}
	defer resp.Close()
	if status := resp.Status(); status != 200 {
		return fmt.Errorf("runner %s responded with status %d", host.Name, status)
	}
	return nil
}

// AskWait is the timeout of a call to which a runner responds from memory.
const AskWait = 10 * time.Second

// Ask calls a runner for the request with the given id, "" for none, and waits at most firstByte for the first byte of
// its response; 0 is no limit. The caller closes the response. An error is one for the client.
func (d *Registry) Ask(canceler *relay.Canceler, method string, host *state.HostRecord, path, id string, firstByte time.Duration) (*relay.Response, error) {
	for corrected := false; ; corrected = true {
		sign := d.cfg.Signer.Sign(rpc.Call{Method: method, Path: path, Host: host.Name})
		req := &relay.Request{Method: method, Path: []byte(path), FirstByte: firstByte, Fields: []relay.Field{
			{Name: rpc.HeaderAuth, Value: []byte(sign)},
		}}
		if id != "" {
			req.Add(rpc.HeaderRequest, []byte(id))
		}
		resp, err := d.Client(host.Addr, host.TLS).Do(canceler, req)
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
			d.cfg.Signer.Correct(host.Name, runner)
			continue
		}
		return nil, api.New(api.InternalError, "The model's host does not accept this gateway.").WithCause(errors.New("runner " + host.Name + " refused: " + reason))
	}
}
