package engine

import (
	"context"
	"io"
	"net"
	"net/http"
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
	want     int // status that means ready
	client   *http.Client
	progress func() // called when the status differs from the one before
}

func newProber(s Spec, progress func()) *prober {
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
	}
	return &prober{
		url: s.HealthURL(), key: s.APIKey, want: want, progress: progress,
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

// run polls until the engine is ready, and reports whether it became ready before ctx ended.
func (p *prober) run(ctx context.Context) bool {
	defer p.client.CloseIdleConnections()
	wait := firstPoll
	timer := time.NewTimer(wait)
	defer timer.Stop()
	last := 0
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
		}
		status := p.try(ctx)
		if status == p.want {
			return ctx.Err() == nil
		}
		if status != last {
			p.progress()
			last = status
		}
		wait = min(wait*3/2, slowestPoll)
		timer.Reset(wait)
	}
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
