package relay

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/infra/rpc"
	"reveille/testenv/kit"
)

func listen(t *testing.T, cfg ListenerConfig) *Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(ln, cfg)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestConnectionLimits(t *testing.T) {
	for name, cfg := range map[string]ListenerConfig{
		"total":  {MaxConns: 2, Refusal: []byte("HTTP/1.1 503 x\r\n\r\n")},
		"per IP": {MaxConnsPerIP: 2, Refusal: []byte("HTTP/1.1 503 x\r\n\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, cfg)
			accepted := make(chan net.Conn, 8)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					nc, err := l.Accept()
					if err != nil {
						return
					}
					accepted <- nc
				}
			}()
			dialRaw(t, l.Addr().String())
			dialRaw(t, l.Addr().String())
			first, second := <-accepted, <-accepted
			third := dialRaw(t, l.Addr().String())
			if got, _ := third.all(); got != string(cfg.Refusal) {
				t.Fatalf("%q", got)
			}
			if n := opened(l); n != 2 {
				t.Fatal(n)
			}
			_ = first.Close()
			if err := first.Close(); !errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			}
			dialRaw(t, l.Addr().String())
			fourth := <-accepted
			_ = second.Close()
			_ = fourth.Close()
			if n := opened(l); n != 0 || len(l.perIP) != 0 {
				t.Fatal(n, l.perIP)
			}
			_ = l.Close()
			<-done
		})
	}
}

// writesTo accepts one connection and writes 64 MiB to it.
func writesTo(l net.Listener) error {
	nc, err := l.Accept()
	if err != nil {
		return err
	}
	defer func() { _ = nc.Close() }()
	_ = nc.SetWriteDeadline(time.Now().Add(-time.Hour)) // must not replace the listener's
	buf := make([]byte, 64<<10)
	for range 1024 {
		if _, err := nc.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

func TestStalledReaderIsShed(t *testing.T) {
	l := listen(t, ListenerConfig{WriteTimeout: 200 * time.Millisecond})
	dialRaw(t, l.Addr().String())
	if err := writesTo(l); err == nil || !err.(net.Error).Timeout() {
		t.Fatal("stalled:", err)
	}
}

// A client that reads slowly is not dropped, however long it takes.
func TestSlowReaderIsNotShed(t *testing.T) {
	t.Parallel() // mostly waits
	const timeout = 2 * time.Second
	l := listen(t, ListenerConfig{WriteTimeout: timeout})
	slow := dialRaw(t, l.Addr().String())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 8 { // in total longer than the timeout
			_, _ = io.CopyN(io.Discard, slow.br, 8<<20)
			time.Sleep(timeout / 6)
		}
	}()
	if err := writesTo(l); err != nil {
		t.Fatal(err)
	}
	<-done
}

// One long write, such as a response kept in memory, is bounded by the client's pauses, not by its length.
func TestSlowReaderOfOneLongWriteIsNotShed(t *testing.T) {
	t.Parallel() // mostly waits
	const timeout, size, parts = 2 * time.Second, 64 << 20, 16
	l := listen(t, ListenerConfig{WriteTimeout: timeout})
	slow := dialRaw(t, l.Addr().String())
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range parts { // in total longer than the timeout
			_, _ = io.CopyN(io.Discard, slow.br, size/parts)
			time.Sleep(timeout / 12)
		}
	}()
	if n, err := nc.Write(make([]byte, size)); n != size || err != nil {
		t.Fatal(n, err)
	}
	<-done
}

// An old write's deadline must not cut a response on a connection that was idle for longer.
func TestIdleConnectionOutlivesTheWriteTimeout(t *testing.T) {
	const timeout = 100 * time.Millisecond
	body := strings.Repeat("x", 100<<10)
	c := newUpstream(t, always("HTTP/1.1 200 OK\r\nContent-Length: 102400\r\n\r\n"+body)).client(t, Config{WriteTimeout: timeout})
	addr := frontend(t, ListenerConfig{WriteTimeout: timeout}, func(ctx *fasthttp.RequestCtx) {
		r, err := c.Do(nil, &Request{Method: "POST", Path: ctx.Path(), Body: []byte(body)})
		if err != nil {
			t.Error(err)
			return
		}
		r.SendTo(ctx)
	})
	client := dialRaw(t, addr)
	for _, idle := range []time.Duration{0, timeout / 20, timeout * 15 / 16, timeout * 5 / 4, timeout * 3} {
		time.Sleep(idle)
		client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		client.until("\r\n\r\n")
		got := make([]byte, len(body))
		if _, err := io.ReadFull(client.br, got); err != nil || string(got) != body {
			t.Fatalf("idle for %v: %v", idle, err)
		}
	}
	kit.Eventually(t, "the one connection to the upstream is idle", func() bool { return c.Stats() == Stats{Idle: 1} }) // it comes back behind the last byte
}

func TestRemoteIPGroupsIPv6(t *testing.T) {
	a := remoteIP(addrConn{addr: "[2001:db8:1:2:3::4]:5"})
	b := remoteIP(addrConn{addr: "[2001:db8:1:2:9::9]:7"})
	if a != b || remoteIP(addrConn{addr: "[::ffff:192.0.2.1]:5"}).String() != "192.0.2.1" {
		t.Fatal(a, b)
	}
}

type addrConn struct {
	net.Conn
	addr string
}

func (c addrConn) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", c.addr)
	return a
}

func TestSmugglingCheck(t *testing.T) {
	addr := frontend(t, ListenerConfig{}, func(ctx *fasthttp.RequestCtx) {
		if SmugglingCheck(ctx) {
			ctx.SetStatusCode(fasthttp.StatusBadRequest)
		}
	})
	for name, tc := range map[string]struct {
		fields, body string
		refused      bool
	}{
		"length":             {"Content-Length: 2\r\n", "ok", false},
		"chunked":            {"Transfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n", false},
		"both":               {"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", true},
		"both, other order":  {"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n", true},
		"both, other case":   {"CONTENT-length: 4\r\ntransfer-ENCODING: chunked\r\n", "0\r\n\r\n", true},
		"identity":           {"Content-Length: 2\r\nTransfer-Encoding: identity\r\n", "ok", true},
		"name within a name": {"X-Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", false},
		"name in a value":    {"A: Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			client := dialRaw(t, addr)
			client.send("POST / HTTP/1.1\r\nHost: x\r\n" + tc.fields + "\r\n" + tc.body)
			if tc.refused {
				client.send("GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
				got, _ := client.all()
				if !strings.HasPrefix(got, "HTTP/1.1 400") || strings.Count(got, "HTTP/1.1") != 1 {
					t.Fatalf("%q", got)
				}
				return
			}
			client.until("HTTP/1.1 200")
		})
	}
}

func opened(l *Listener) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// TestRefusedClientHoldsNobodyUp: a client over the limit that says nothing keeps no other from connecting by TLS.
func TestRefusedClientHoldsNobodyUp(t *testing.T) {
	cert, fingerprint, err := rpc.NewCertificate()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := NewListener(tls.NewListener(plain, &tls.Config{Certificates: []tls.Certificate{cert}}), ListenerConfig{MaxConns: 1, Refusal: []byte("full")})
	defer ln.Close()
	accepted := make(chan net.Conn, 1)
	accept := func() {
		if nc, err := ln.Accept(); err == nil {
			accepted <- nc
		}
	}
	dial := func() net.Conn {
		nc, err := net.Dial("tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return nc
	}
	go accept()
	first := dial()
	defer first.Close()
	held := <-accepted
	go accept()
	silent := dial()
	defer silent.Close()
	_ = silent.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := silent.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a client over the limit: %d bytes, %v, want the end of its connection", n, err)
	}
	_ = held.Close()
	last := tls.Client(dial(), rpc.Pin(fingerprint))
	defer last.Close()
	select {
	case nc := <-accepted:
		_ = nc.Close()
	case <-time.After(10 * time.Second):
		t.Fatal("nobody can connect any more")
	}
}
