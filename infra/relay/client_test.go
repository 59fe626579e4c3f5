package relay

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"reveille/testenv/kit"
)

func TestResponses(t *testing.T) {
	big := strings.Repeat("x", 300<<10)
	cases := []struct {
		name, method, reply string
		status              int
		body                string
		reuse               bool
		kind                error // of Do, or of reading the body
	}{
		{"length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true, nil},
		{"empty", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", true, nil},
		{"big", "GET", "HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(big)) + "\r\n\r\n" + big, 200, big, true, nil},
		{"LF only", "GET", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, "ok", true, nil},
		{"LF within", "GET", "HTTP/1.1 200 OK\r\nA: b\nContent-Length: 2\r\n\r\nok", 200, "ok", true, nil},
		{"folded", "GET", "HTTP/1.1 200 OK\r\nA: b,\r\n\tContent-Length: 7\r\nContent-Length:\r\n 2\r\n\r\nok", 200, "ok", true, nil},
		{"blanks before a colon", "GET", "HTTP/1.1 200 OK\r\nContent-Type : a/b\r\nContent-Length \t: 2\r\n\r\nok", 200, "ok", true, nil},
		{"long head", "GET", "HTTP/1.1 200 OK\r\nA: " + big[:120<<10] + "\r\nContent-Length: 2\r\n\r\nok", 200, "ok", true, nil},
		{"blanks behind a size", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0 ; a=b\r\n\r\n", 200, "abc", true, nil},
		{"no reason", "GET", "HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\nx", 200, "x", true, nil},
		{"chunked", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, "abcde", true, nil},
		{"chunk extension", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b c\"\r\nabc\r\n0;z\r\n\r\n", 200, "abc", true, nil},
		{"trailers", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", 200, "abc", true, nil},
		{"big chunk", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4B000\r\n" + big + "\r\n0\r\n\r\n", 200, big, true, nil},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", true, nil},
		{"304 with length", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, "", true, nil},
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 200, "", true, nil},
		{"continue", "GET", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok", true, nil},
		{"error status", "GET", "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno", 500, "no", true, nil},
		{"connection close", "GET", "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok", 200, "ok", false, nil},
		{"connection list", "GET", "HTTP/1.1 200 OK\r\nConnection: x, CLOSE\r\nContent-Length: 2\r\n\r\nok", 200, "ok", false, nil},
		{"connection lines", "GET", "HTTP/1.1 200 OK\r\nConnection: x\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok", 200, "ok", false, nil},
		{"close, then keep-alive", "GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, "ok", false, nil},
		{"keep-alive", "GET", "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, "ok", true, nil},
		{"close-delimited", "GET", "HTTP/1.1 200 OK\r\n\r\nto the end", 200, "to the end", false, nil},
		{"HTTP/1.0", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok", false, nil},
		{"bytes behind the body", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n", 200, "ok", false, nil},
		{"bytes behind the chunks", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n0", 200, "ok", false, nil},

		{"nothing", "GET", "", 0, "", false, ErrBroken},
		{"half a head", "GET", "HTTP/1.1 200 OK\r\nContent-", 0, "", false, ErrBroken},
		{"only continue", "GET", "HTTP/1.1 100 Continue\r\n\r\n", 0, "", false, ErrBroken},
		{"short body", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", 200, "short", false, ErrBroken},
		{"no last chunk", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", 200, "abc", false, ErrBroken},
		{"cut chunk", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc", 200, "abc", false, ErrBroken},
		{"not HTTP", "GET", "SSH-2.0-OpenSSH_9.6\r\n", 0, "", false, ErrInvalidResponse},
		{"HTTP/2", "GET", "HTTP/2 200\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"HTTP/1.2", "GET", "HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"bare CR", "GET", "HTTP/1.1 200 OK\r\nA: b\rc\r\nContent-Length: 2\r\n\r\nok", 0, "", false, ErrInvalidResponse},
		{"status 99", "GET", "HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"status word", "GET", "HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"switching protocols", "GET", "HTTP/1.1 101 Switching Protocols\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"continue for ever", "GET", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20), 0, "", false, ErrInvalidResponse},
		{"oversized head", "GET", "HTTP/1.1 200 OK\r\nA: " + big + "\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"folded status line", "GET", "HTTP/1.1 200 OK\r\n Content-Length: 2\r\n\r\nok", 0, "", false, ErrInvalidResponse},
		{"folded length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n 0\r\n\r\nok", 0, "", false, ErrInvalidResponse},
		{"two lengths", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", 0, "", false, ErrInvalidResponse},
		{"signed length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", 0, "", false, ErrInvalidResponse},
		{"both framings", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"both, other order", "GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"unknown coding", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"chunked HTTP/1.0", "GET", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, "", false, ErrInvalidResponse},
		{"bad size", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 200, "", false, ErrInvalidResponse},
		{"bad second size", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n-1\r\n", 200, "abc", false, ErrInvalidResponse},
		{"LF in one chunk", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\n\n", 200, "abc", false, ErrInvalidResponse},
		{"compressed", "GET", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok", 0, "", false, ErrInvalidResponse},
		{"long chunk", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", 200, "abc", false, ErrInvalidResponse},
		{"huge size", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8000000000000000\r\n", 200, "", false, ErrInvalidResponse},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			serve := always(tc.reply)
			if tc.kind != nil || tc.name == "close-delimited" {
				serve = once(tc.reply)
			}
			c := newUpstream(t, serve).client(t, Config{})
			for range 2 { // the second time on the pooled connection, if there is one
				req := get("/")
				req.Method = tc.method
				r, err := c.Do(nil, req)
				if tc.status == 0 {
					checkError(t, err, tc.kind)
				} else {
					if err != nil {
						t.Fatal(err)
					}
					var ended error = errors.New("OnEnd was not called")
					r.OnEnd = func(err error) { ended = err }
					if r.Status() != tc.status {
						t.Fatalf("status %d", r.Status())
					}
					body, err := io.ReadAll(r)
					if string(body) != tc.body {
						t.Fatalf("body of %d bytes, want %d", len(body), len(tc.body))
					}
					if tc.kind != nil {
						checkError(t, err, tc.kind)
					} else if err != nil {
						t.Fatal(err)
					}
					if err := r.Close(); err != nil {
						t.Fatal(err)
					}
					if ended != err {
						t.Fatalf("OnEnd got %v, want %v", ended, err)
					}
				}
				want := Stats{}
				if tc.reuse {
					want.Idle = 1
				}
				if got := c.Stats(); got != want {
					t.Fatalf("connections %+v, want %+v", got, want)
				}
			}
		})
	}
}

// checkError checks for a failure of this kind after the request was sent.
func checkError(t *testing.T, err, kind error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, kind) || !e.Sent {
		t.Fatalf("error %+v, want %v with Sent", err, kind)
	}
}

func TestRequestOnTheWire(t *testing.T) {
	type seen struct{ head, body string }
	heads := make(chan seen, 1)
	c := newUpstream(t, func(nc net.Conn, br *bufio.Reader) {
		for {
			head, body := readRequest(br)
			if head == "" {
				return
			}
			heads <- seen{head, body}
			_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	}).client(t, Config{})
	for _, size := range []int{0, 10, 100 << 10, 9 << 20} {
		body := strings.Repeat("b", size)
		req := &Request{Method: "POST", Path: []byte("/v1/x?y=1"), Body: []byte(body)}
		req.Add("Content-Type", []byte("application/json"))
		errs := make(chan error, 1)
		go func() {
			r, err := c.Do(nil, req)
			if err == nil {
				err = r.Close()
			}
			errs <- err
		}()
		got := <-heads
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		want := "POST /v1/x?y=1 HTTP/1.1\r\nHost: " + c.cfg.Addr + "\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(size) + "\r\n\r\n"
		if got.head != want || got.body != body {
			t.Fatalf("head %q, body of %d bytes", got.head, len(got.body))
		}
	}
}

func TestRequestThatCannotBeWritten(t *testing.T) {
	c := New(Config{Addr: "127.0.0.1:1"})
	defer c.Close()
	for name, change := range map[string]func(*Request){
		"path with blank": func(r *Request) { r.Path = []byte("/a b") },
		"path with CRLF":  func(r *Request) { r.Path = []byte("/a\r\nX:") },
		"no path":         func(r *Request) { r.Path = nil },
		"absolute path":   func(r *Request) { r.Path = []byte("http://x/") },
		"method":          func(r *Request) { r.Method = "GET /" },
		"value with LF":   func(r *Request) { r.Add("A", []byte("b\nc")) },
		"value with NUL":  func(r *Request) { r.Add("A", []byte("b\x00c")) },
		"name with colon": func(r *Request) { r.Add("A:", []byte("b")) },
		"host twice":      func(r *Request) { r.Add("hOst", []byte("b")) },
		"own framing":     func(r *Request) { r.Add("Transfer-Encoding", []byte("chunked")) },
	} {
		req := get("/")
		change(req)
		if _, err := c.Do(nil, req); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	c := New(Config{Addr: addr})
	defer c.Close()
	for range 3 { // a failed dial is not counted as in progress
		_, err = c.Do(nil, get("/"))
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrUnreachable) || e.Sent {
			t.Fatalf("%+v", err)
		}
	}
	if got := c.Stats(); got != (Stats{}) {
		t.Fatalf("%+v", got)
	}
}

// An unreachable runner fails a request after one second. Runs in virtual time.
func TestUnreachableByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Addr: "nowhere:1", Dial: func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		defer c.Close()
		began := time.Now()
		_, err := c.Do(nil, get("/"))
		if took := time.Since(began); err == nil || took != time.Second {
			t.Errorf("%v after %v, want an error after 1 s", err, took)
		}
	})
}

func TestStaleIdleConnectionIsNotUsed(t *testing.T) {
	u := newUpstream(t, once("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	c := u.client(t, Config{})
	for i := range 20 {
		r, err := c.Do(nil, get("/"))
		if err != nil {
			t.Fatal(i, err)
		}
		if _, err := io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		cn := c.idle[0]
		kit.Eventually(t, "the upstream closes", cn.isStale)
	}
}

func TestUnrequestedBytesCloseAnIdleConnection(t *testing.T) {
	u := newUpstream(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	c := u.client(t, Config{})
	drain(t, c)
	first := <-u.conns
	_, _ = io.WriteString(first, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
	kit.Eventually(t, "the bytes come", c.idle[0].isStale)
	if body := drain(t, c); body != "ok" {
		t.Fatal(body)
	}
	_ = first.Close()
}

func TestSingle(t *testing.T) {
	heads := make(chan string, 3)
	u := newUpstream(t, func(nc net.Conn, br *bufio.Reader) {
		head, _ := readRequest(br)
		heads <- head
		_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		if n, _ := br.Read(make([]byte, 1)); n > 0 {
			t.Error("a second request arrived on the same connection")
		}
	})
	c := u.client(t, Config{Single: true})
	for range cap(heads) {
		if got := drain(t, c); got != "ok" {
			t.Fatal(got)
		}
		if head := <-heads; !strings.Contains(head, "\r\nConnection: close\r\n") {
			t.Errorf("%q", head)
		}
	}
	if got := c.Stats(); got != (Stats{}) {
		t.Errorf("%+v", got)
	}
}

func drain(t testing.TB, c *Client) string {
	t.Helper()
	r, err := c.Do(nil, get("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestIdleConnectionsAreReaped(t *testing.T) {
	u := newUpstream(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	c := u.client(t, Config{IdleTimeout: 20 * time.Millisecond})
	drain(t, c)
	kit.Eventually(t, "idle connections are closed", func() bool { return c.Stats().Idle == 0 })
	drain(t, c)
	kit.Eventually(t, "idle connections are closed again", func() bool { return c.Stats().Idle == 0 })
}

func TestMaxIdleAndClose(t *testing.T) {
	u := newUpstream(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	c := u.client(t, Config{MaxIdle: 1})
	a, err := c.Do(nil, get("/"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Do(nil, get("/"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Response{a, b} {
		_, _ = io.ReadAll(r)
		_ = r.Close()
	}
	if got := c.Stats(); got != (Stats{Idle: 1}) {
		t.Fatalf("%+v", got)
	}
	c.Close()
	if _, err := c.Do(nil, get("/")); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "e.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	go func() {
		nc, err := ln.Accept()
		if err == nil {
			always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")(nc, bufio.NewReader(nc))
			_ = nc.Close()
		}
	}()
	c := New(Config{Network: "unix", Addr: path})
	defer c.Close()
	for range 3 {
		if body := drain(t, c); body != "ok" {
			t.Fatal(body)
		}
	}
}
