package engine

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// The health path is polled often at first, so that a fast load is not delayed, and then less often, so that a slow
// load is not disturbed.
const (
	firstPoll   = 5 * time.Millisecond
	slowestPoll = 50 * time.Millisecond
	pollTimeout = 2 * time.Second // of one try
)

// A prober polls an engine's health path.
type prober struct {
	url, key string
	addr     string // of the port
	want     int    // status that means ready
	client   *http.Client
	progress func() // called when the status differs from the one before
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	// findListener reports whether a process listens on the engine's port, and whether the engine owns it. It reads the
	// machine's whole table of connections, so it is called only after the port has accepted a connection.
	findListener func() (found, ownedByEngine bool)
}

func (p *Process) newProber() *prober {
	s, mark := p.spec, ""
	if p.cfg.Marker != nil {
		mark = p.cfg.Marker.mark
	}
	find := func() (found, ownedByEngine bool) { return findListener(p.pid, mark, s.Port) }
	want := s.Recipe.Ready.Status
	if want == 0 {
		want = http.StatusOK
	}
	dialer := &net.Dialer{Timeout: pollTimeout}
	dial := dialer.DialContext
	if s.onSocket() {
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", s.Socket)
		}
		find = func() (found, ownedByEngine bool) { return true, true }
	}
	return &prober{
		url: s.HealthURL(), key: s.APIKey, addr: net.JoinHostPort(s.Host, strconv.Itoa(s.Port)), want: want, progress: p.touch, dial: dial, findListener: find,
		client: &http.Client{
			Timeout: pollTimeout,
			// A separate transport, so that no proxy from the environment is used and no connection outlives the load.
			Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
	}
}

// run polls until the engine is ready, and returns ctx's error if that ends first. The first request carries the engine's
// key, so run first checks that the listener is the engine, and returns ErrPortTaken if it is another program.
func (p *prober) run(ctx context.Context) error {
	defer p.client.CloseIdleConnections()
	wait := firstPoll
	timer := time.NewTimer(wait)
	defer timer.Stop()
	last, found := 0, false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		status, ownedByEngine := 0, true
		if !found && p.accepts(ctx) {
			found, ownedByEngine = p.findListener()
		}
		if found && !ownedByEngine {
			return &LoadError{Kind: ErrPortTaken}
		}
		if found {
			status = p.try(ctx)
		}
		if status == p.want {
			return ctx.Err()
		}
		if status != last {
			p.progress()
			last = status
		}
		wait = min(wait*3/2, slowestPoll)
		timer.Reset(wait)
	}
}

// accepts reports whether something accepts connections at the engine's address. It sends nothing.
func (p *prober) accepts(ctx context.Context) bool {
	conn, err := p.dial(ctx, "tcp", p.addr)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// try returns the status of one poll, 0 if there was no response.
func (p *prober) try(ctx context.Context) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return 0
	}
	if p.key != "" {
		req.Header.Set("Authorization", "Bearer "+p.key)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	return resp.StatusCode
}
