package relay

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStartThatWaits: what Start waited for is there, and what has not come until the given time can still be awaited.
func TestStartThatWaits(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	more := make(chan struct{})
	u := newUpstream(t, func(nc net.Conn, br *bufio.Reader) {
		for {
			head, _ := readRequest(br)
			if head == "" {
				return
			}
			if strings.HasPrefix(head, "GET /late") {
				<-more
			}
			_, _ = io.WriteString(nc, answer)
		}
	})
	c := u.client(t, Config{})
	for i, until := range []time.Time{{}, time.Now().Add(time.Hour), time.Now().Add(-time.Hour), {}} {
		req := get("/")
		req.Waits, req.Until = true, until
		r, err := c.Start(nil, req)
		if err != nil {
			t.Fatal(i, err)
		}
		if waited := until.IsZero() || time.Until(until) > 0; waited && r.c.hi == 0 {
			t.Errorf("%d: nothing has come", i)
		}
		if err := r.Await(time.Time{}); err != nil || r.Status() != 200 {
			t.Fatal(i, r.Status(), err)
		}
		if b, err := io.ReadAll(r); string(b) != "ok" || err != nil {
			t.Fatal(i, string(b), err)
		}
		_ = r.Close()
	}
	for i := range 3 {
		req := get("/late")
		req.Waits, req.Until = true, time.Now().Add(20*time.Millisecond)
		r, err := c.Start(nil, req)
		if err != nil {
			t.Fatal(i, err)
		}
		if err := r.Await(time.Now().Add(time.Millisecond)); !errors.Is(err, ErrPending) {
			t.Fatal(i, err)
		}
		more <- struct{}{}
		if err := r.Await(time.Time{}); err != nil || r.Status() != 200 {
			t.Fatal(i, r.Status(), err)
		}
		_, _ = io.Copy(io.Discard, r)
		_ = r.Close()
	}
	if n := len(u.conns); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// TestCancelWhileStartWaits: a call that is cancelled ends the wait.
func TestCancelWhileStartWaits(t *testing.T) {
	asked := make(chan struct{})
	u := newUpstream(t, func(_ net.Conn, br *bufio.Reader) {
		_, _ = readRequest(br)
		close(asked)
		_, _ = br.ReadByte()
	})
	c := u.client(t, Config{})
	var call Call
	go func() {
		<-asked
		call.Cancel(ErrGone)
	}()
	req := get("/")
	req.Waits = true
	r, err := c.Start(&call, req)
	if err == nil {
		err = r.Await(time.Time{})
		_ = r.Close()
	}
	if !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Active != 0 || s.Idle != 0 {
		t.Errorf("%+v", s)
	}
}

// TestStartSendsTheRest: a socket with room for a part of a small request gets the rest later.
func TestStartSendsTheRest(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	bodies := make(chan string, 3)
	go func() {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		for br := bufio.NewReader(nc); ; {
			time.Sleep(20 * time.Millisecond) // so that the socket is full before anything is read
			head, body := readRequest(br)
			if head == "" {
				return
			}
			bodies <- body
			_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	}()
	c := New(Config{Addr: "x", Dial: func(ctx context.Context) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, "unix", ln.Addr().String())
		if err == nil {
			err = nc.(*net.UnixConn).SetWriteBuffer(1)
		}
		return nc, err
	}})
	defer c.Close()
	body := strings.Repeat("x", 15<<10)
	for i := range 3 {
		r, err := c.Do(nil, &Request{Method: "POST", Path: []byte("/"), Body: []byte(body)})
		if err != nil {
			t.Fatal(i, err)
		}
		if r.c.taken >= len(body) {
			t.Errorf("%d: the socket took all at once", i)
		}
		if got := <-bodies; got != body {
			t.Errorf("%d: %d bytes, want %d", i, len(got), len(body))
		}
		if b, err := io.ReadAll(r); string(b) != "ok" || err != nil {
			t.Fatal(i, string(b), err)
		}
		_ = r.Close()
	}
}
