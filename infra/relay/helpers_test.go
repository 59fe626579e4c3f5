package relay

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"
)

// Two of fasthttp's goroutines outlive their use: the clock for the Date header, and the cleaner of the client in the
// benchmarks, which sleeps for ten seconds between rounds.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*HostClient).connsCleaner"))
}

const patience = 10 * time.Second

// upstream runs serve on each connection, with a reader for the requests.
type upstream struct {
	ln    net.Listener
	serve func(nc net.Conn, br *bufio.Reader)
	conns chan net.Conn
}

func newUpstream(t testing.TB, serve func(nc net.Conn, br *bufio.Reader)) *upstream {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{ln: ln, serve: serve, conns: make(chan net.Conn, 10000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			u.conns <- nc
			go func() {
				defer func() { _ = nc.Close() }()
				u.serve(nc, bufio.NewReader(nc))
			}()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
		close(u.conns)
		for nc := range u.conns {
			_ = nc.Close()
		}
	})
	return u
}

func (u *upstream) client(t testing.TB, cfg Config) *Client {
	t.Helper()
	cfg.Addr = u.ln.Addr().String()
	c := New(cfg)
	t.Cleanup(c.Close)
	return c
}

// readRequest reads a request with its body and returns its head, or "" at the end of the connection.
func readRequest(br *bufio.Reader) (head, body string) {
	var req fasthttp.Request
	if err := req.ReadLimitBody(br, 64<<20); err != nil {
		return "", ""
	}
	return req.Header.String(), string(req.Body())
}

// always responds to every request on a connection with the same bytes.
func always(reply string) func(net.Conn, *bufio.Reader) {
	return func(nc net.Conn, br *bufio.Reader) {
		for {
			if head, _ := readRequest(br); head == "" {
				return
			}
			if _, err := io.WriteString(nc, reply); err != nil {
				return
			}
		}
	}
}

// once responds to the first request and closes the connection.
func once(reply string) func(net.Conn, *bufio.Reader) {
	return func(nc net.Conn, br *bufio.Reader) {
		readRequest(br)
		_, _ = io.WriteString(nc, reply)
	}
}

func get(path string) *Request { return &Request{Method: "GET", Path: []byte(path)} }

// frontend starts a fasthttp server behind a Listener and returns its address.
func frontend(t testing.TB, cfg ListenerConfig, handler fasthttp.RequestHandler) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fasthttp.Server{
		Handler: handler, ReadTimeout: 30 * time.Second, IdleTimeout: 60 * time.Second,
		SecureErrorLogMessage: true, Logger: quiet{}, MaxIdleWorkerDuration: 100 * time.Millisecond,
		NoDefaultServerHeader: true, CloseOnShutdown: true,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(NewListener(ln, cfg))
	}()
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return ln.Addr().String()
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// rawClient talks to a frontend byte by byte.
type rawClient struct {
	net.Conn
	t  testing.TB
	br *bufio.Reader
}

func dialRaw(t testing.TB, addr string) *rawClient {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(2 * patience))
	return &rawClient{Conn: nc, t: t, br: bufio.NewReader(nc)}
}

func (c *rawClient) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
}

// until reads up to and including end.
func (c *rawClient) until(end string) string {
	c.t.Helper()
	var b strings.Builder
	for !strings.HasSuffix(b.String(), end) {
		ch, err := c.br.ReadByte()
		if err != nil {
			c.t.Fatalf("%v after %q, waiting for %q", err, b.String(), end)
		}
		b.WriteByte(ch)
	}
	return b.String()
}

// all reads to the end of the connection.
func (c *rawClient) all() (string, error) {
	b, err := io.ReadAll(c.br)
	return string(b), err
}
