package instance

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"reveille/testenv/imds"
)

// pipes is a network of this process alone.
type pipes struct {
	ends chan net.Conn
	once sync.Once
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	p.ends <- far
	return near, nil
}

func (p *pipes) Accept() (net.Conn, error) {
	if c, ok := <-p.ends; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.ends) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// A notice is seen within 5 s of its coming (fault 26), whatever the moment, also if one look fails meanwhile. In
// virtual time.
func TestNoticeArrivesWithinThePollInterval(t *testing.T) {
	for after := time.Duration(0); after <= PollEvery; after += 250 * time.Millisecond {
		for _, fails := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				service := imds.New(map[string]string{imds.Target: "InService"})
				network := &pipes{ends: make(chan net.Conn)}
				server := &http.Server{Handler: service}
				go func() { _ = server.Serve(network) }()
				m := NewMetadata("http://metadata")
				m.transport.DialContext = network.dial
				defer func() { m.Close(); _ = server.Close() }()
				var came time.Time
				time.AfterFunc(10*PollEvery+after, func() {
					came = time.Now()
					service.Interrupt(came.Add(2 * time.Minute))
					if fails {
						service.Break(http.StatusServiceUnavailable)
						time.AfterFunc(PollEvery, func() { service.Break(0) })
					}
				})
				n, err := Watch(t.Context(), m, 0, slog.New(slog.DiscardHandler))
				if took := time.Since(came); err != nil || n.Reason != Interruption || took > 5*time.Second {
					t.Errorf("%v after a look, a look fails: %v: %+v %v after %v", after, fails, n, err, took)
				}
			})
		}
	}
}
