package relay

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"reveille/testenv/kit"
)

// silent reads a request, sends reply, and then sends nothing until the connection ends.
func silent(reply string, ended chan<- struct{}) func(net.Conn, *bufio.Reader) {
	return func(nc net.Conn, br *bufio.Reader) {
		if head, _ := readRequest(br); head == "" {
			return
		}
		_, _ = io.WriteString(nc, reply)
		_, _ = br.ReadByte()
		ended <- struct{}{}
	}
}

func TestCancel(t *testing.T) {
	crash := errors.New("engine crashed")
	for name, reply := range map[string]string{
		"before the head": "",
		"within the head": "HTTP/1.1 200 OK\r\n",
		"within the body": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{}, 1)
			c := newUpstream(t, silent(reply, ended)).client(t, Config{})
			var canceler Canceler
			timer := time.AfterFunc(50*time.Millisecond, func() { canceler.Cancel(crash) })
			defer timer.Stop()
			r, err := c.Do(&canceler, get("/"))
			if err == nil {
				_, err = io.ReadAll(r)
				_ = r.Close()
			}
			var e *Error
			if !errors.Is(err, ErrCanceled) || !errors.Is(err, crash) || errors.Is(err, ErrClientGone) || !errors.As(err, &e) || !e.Sent {
				t.Fatalf("%v", err)
			}
			select {
			case <-ended:
			case <-time.After(patience):
				t.Fatal("the upstream was not notified")
			}
			if _, err := c.Do(&canceler, get("/")); !errors.Is(err, crash) {
				t.Fatal("a canceled exchange started:", err)
			}
			if got := c.Stats(); got != (Stats{}) {
				t.Fatalf("%+v", got)
			}
		})
	}
}

// A cancel that races with the end of its exchange must never hit the next exchange on that connection.
func TestCancelRace(t *testing.T) {
	c := newUpstream(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")).client(t, Config{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				var canceler Canceler
				if i%2 == 0 {
					wg.Go(func() { canceler.Cancel(nil) })
				}
				r, err := c.Do(&canceler, get("/"))
				if err == nil {
					_, err = io.ReadAll(r)
					_ = r.Close()
				}
				if err != nil && (i%2 != 0 || !errors.Is(err, ErrClientGone)) {
					t.Error(i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := c.Stats().Active; got != 0 {
		t.Fatal("still active:", got)
	}
}

func TestTimeouts(t *testing.T) {
	for name, tc := range map[string]struct {
		reply string
		req   Request
	}{
		"first byte":  {"", Request{FirstByte: 30 * time.Millisecond}},
		"half a head": {"HTTP/1.1 200 OK\r\n", Request{FirstByte: 30 * time.Millisecond}},
		"first body":  {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", Request{FirstByte: 30 * time.Millisecond, Silence: time.Hour}},
		"silence":     {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", Request{Silence: 30 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newUpstream(t, silent(tc.reply, make(chan struct{}, 1))).client(t, Config{})
			tc.req.Method, tc.req.Path = "GET", []byte("/")
			r, err := c.Do(nil, &tc.req)
			if err == nil {
				_, err = io.ReadAll(r)
				_ = r.Close()
			}
			checkError(t, err, ErrTimeout)
		})
	}
}

// A deadline left on a pooled connection must not end a later exchange, or a wait without a limit.
func TestOldDeadlinesDoNoHarm(t *testing.T) {
	release := make(chan struct{}, 1)
	c := newUpstream(t, func(nc net.Conn, br *bufio.Reader) {
		for n := 0; ; n++ {
			if head, _ := readRequest(br); head == "" {
				return
			}
			if n > 0 {
				<-release
			}
			_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	}).client(t, Config{})
	req := get("/")
	req.FirstByte = 50 * time.Millisecond
	r, err := c.Do(nil, req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(r)
	_ = r.Close()
	for range 2 {
		time.AfterFunc(120*time.Millisecond, func() { release <- struct{}{} })
		if body := drain(t, c); body != "ok" {
			t.Fatal(body)
		}
	}
	if got := c.Stats().Idle; got != 1 {
		t.Fatal("another connection was made:", got)
	}
}

func TestAwaitIsResumable(t *testing.T) {
	release := make(chan struct{})
	c := newUpstream(t, func(nc net.Conn, br *bufio.Reader) {
		readRequest(br)
		<-release
		_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}).client(t, Config{})
	r, err := c.Start(nil, get("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for range 3 {
		if err := r.Await(time.Now().Add(10 * time.Millisecond)); err != ErrPending || r.Status() != 0 {
			t.Fatal(err, r.Status())
		}
	}
	close(release)
	if err := r.Await(time.Time{}); err != nil || r.Status() != 200 {
		t.Fatal(err)
	}
	if err := r.Await(time.Now()); err != nil {
		t.Fatal("a response that has arrived:", err)
	}
}

// A limit in the past polls for a response, and must see one that has arrived.
func TestAwaitInThePastSeesTheResponse(t *testing.T) {
	c := newUpstream(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")).client(t, Config{})
	r, err := c.Start(nil, get("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	kit.Eventually(t, "the response is seen", func() bool {
		err := r.Await(time.Now().Add(-time.Second))
		if err != nil && err != ErrPending {
			t.Fatal(err)
		}
		return err == nil
	})
	if b, err := io.ReadAll(r); err != nil || string(b) != "ok" {
		t.Fatal(string(b), err)
	}
}

// An upstream that refuses a long request responds before reading all of it, and closes.
func TestEarlyResponse(t *testing.T) {
	c := newUpstream(t, func(nc net.Conn, br *bufio.Reader) {
		_, _ = br.ReadString('\n')
		_, _ = io.WriteString(nc, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
		_ = nc.(*net.TCPConn).SetLinger(-1)
	}).client(t, Config{})
	req := &Request{Method: "POST", Path: []byte("/"), Body: []byte(strings.Repeat("x", 32<<20))}
	r, err := c.Do(nil, req)
	if err != nil {
		// On a real network the reset may overtake the response. Then the error must say that the connection broke.
		if e := (*Error)(nil); !errors.As(err, &e) || !errors.Is(err, ErrBroken) || !e.Sent {
			t.Fatal(err)
		}
		return
	}
	if b, err := io.ReadAll(r); err != nil || string(b) != "no" || r.Status() != 413 {
		t.Fatal(string(b), err)
	}
	_ = r.Close()
	if got := c.Stats(); got != (Stats{}) {
		t.Fatalf("a half-used connection was kept: %+v", got)
	}
}

// An upstream that stops reading must not block a sender forever.
func TestStalledUpstream(t *testing.T) {
	ended := make(chan struct{})
	defer close(ended)
	c := newUpstream(t, func(net.Conn, *bufio.Reader) { <-ended }).client(t, Config{WriteTimeout: 100 * time.Millisecond})
	req := &Request{Method: "POST", Path: []byte("/"), Body: make([]byte, 32<<20)}
	_, err := c.Do(nil, req)
	checkError(t, err, ErrTimeout)
}

// An engine has its full time to send the first byte, two minutes by default. Runs in virtual time.
func TestFirstByteTimeout(t *testing.T) {
	for name, reply := range map[string]string{"nothing": "", "half a head": "HTTP/1.1 200 OK\r\n", "a head": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			go func() {
				br := bufio.NewReader(far)
				_, _ = readRequest(br)
				if reply != "" { // a pipe's reader sees an empty write as an empty read
					_, _ = io.WriteString(far, reply)
				}
				_, _ = io.Copy(io.Discard, br)
			}()
			c := New(Config{Addr: "engine:1", Dial: func(context.Context) (net.Conn, error) { return near, nil }})
			defer func() { c.Close(); _ = far.Close() }()
			req, began := get("/"), time.Now()
			req.FirstByte = 120 * time.Second
			r, err := c.Do(nil, req)
			if err == nil {
				_, err = io.ReadAll(r)
				_ = r.Close()
			}
			checkError(t, err, ErrTimeout)
			if took := time.Since(began); took != 120*time.Second {
				t.Errorf("%s: given up after %v, want 120 s", name, took)
			}
		})
	}
}
