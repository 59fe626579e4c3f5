package relay

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// spy is a ResponseHook that counts.
type spy struct{ heads int }

func (h *spy) Head(r *Response, err error) error {
	h.heads++
	if err == nil {
		r.StripHeaders()
	}
	return err
}
func (h *spy) OnError(_ *Response, err error) error { return err }
func (h *spy) End(error)                            {}

// A response that came while the request was being sent reaches the hook like any other.
func TestEarlyResponsePassesTheHop(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(c)) // the head
			_, _ = io.WriteString(c, "HTTP/1.1 421 Misdirected\r\nConnection: close\r\nX-Secret: forged\r\nContent-Length: 2\r\n\r\n{}")
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.CopyN(io.Discard, c, 1<<20) // some of the body; the close then resets the connection
			_ = c.Close()
		}
	}()
	client := New(Config{Addr: ln.Addr().String()})
	defer client.Close()
	for range 10 {
		var canceler Canceler
		resp, err := client.Start(&canceler, &Request{Method: "POST", Path: []byte("/"), Body: make([]byte, 64<<20)})
		if err != nil {
			continue // the reset came before the response was read
		}
		hook := &spy{}
		resp.Hook = hook
		err = resp.Await(time.Time{})
		if again := resp.Await(time.Time{}); again != err {
			t.Errorf("%v, then %v", err, again)
		}
		if hook.heads != 1 || resp.Header("X-Secret") != nil {
			t.Errorf("%d heads reached the hook; X-Secret: %q", hook.heads, resp.Header("X-Secret"))
		}
		_ = resp.Close()
	}
}
