//go:build !race

package relay

import (
	"bytes"
	"io"
	"net"
	"testing"
)

// cannedUpstream responds without allocating: it writes reply for each read that starts with a request.
func cannedUpstream(t testing.TB, reply string) *Client {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	out := []byte(reply)
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = nc.Close() }()
				in := make([]byte, 64<<10)
				for {
					n, err := nc.Read(in)
					if err != nil {
						return
					}
					if bytes.HasPrefix(in[:n], []byte("GET")) || bytes.HasPrefix(in[:n], []byte("POST")) {
						if _, err := nc.Write(out); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
	c := New(Config{Addr: ln.Addr().String()})
	t.Cleanup(func() {
		c.Close()
		_ = ln.Close()
	})
	return c
}

func TestWarmPathAllocatesOneResponse(t *testing.T) {
	for name, reply := range map[string]string{
		"length":  "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nServer: e\r\nX-A: b\r\nContent-Length: 2\r\n\r\nok",
		"chunked": "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n2\r\nok\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := cannedUpstream(t, reply)
			var canceler Canceler
			req := &Request{Method: "POST", Path: []byte("/v1/chat/completions"), Body: make([]byte, 1024)}
			req.Add("Content-Type", []byte("application/json"))
			one := func() {
				canceler = Canceler{}
				r, err := c.Do(&canceler, req)
				if err != nil {
					t.Fatal(err)
				}
				if r.Header("X-A"); len(r.ContentType()) == 0 {
					t.Fatal("no content type")
				}
				if _, err := r.WriteTo(io.Discard); err != nil {
					t.Fatal(err)
				}
				_ = r.Close()
			}
			for range 20 {
				one()
			}
			if n := testing.AllocsPerRun(500, one); n > 1 { // the response
				t.Fatalf("%.1f allocations in a warm request", n)
			}
		})
	}
}

func TestShortWatchDoesNotAllocate(t *testing.T) {
	w := NewWatcher(0)
	a, b := net.Pipe()
	defer func() { _ = a.Close(); _ = b.Close() }()
	gone := func() {}
	if n := testing.AllocsPerRun(500, func() { w.Arm(a, gone).Stop() }); n > 0 {
		t.Fatalf("%.1f allocations", n)
	}
}
