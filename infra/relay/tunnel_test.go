package relay

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// switching starts an upstream that switches protocols, says hello, and then does as serve says; it returns the
// response of an exchange with it.
func switching(t *testing.T, serve func(net.Conn)) (*Response, *Canceler) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil || req.Header.Get("Upgrade") != "thing" || req.Header.Get("Connection") != "Upgrade" {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: thing\r\n\r\nhello")
		serve(c)
	}()
	var canceler Canceler
	client := New(Config{Addr: ln.Addr().String(), Single: true})
	t.Cleanup(client.Close)
	resp, err := client.Do(&canceler, &Request{Method: "GET", Path: []byte("/"), Upgrade: "thing", FirstByte: 5 * time.Second})
	if err != nil || !resp.Switched() {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Close() })
	return resp, &canceler
}

func TestTunnel(t *testing.T) {
	echo := func(c net.Conn) { _, _ = io.Copy(c, c) }
	stop := errors.New("stop")
	for name, tc := range map[string]struct {
		serve func(net.Conn)
		idle  time.Duration
		do    func(t *testing.T, client net.Conn, canceler *Canceler)
		want  error
	}{
		"the client leaves": {echo, time.Minute, func(t *testing.T, c net.Conn, _ *Canceler) {
			want := "hello and more"
			if _, err := io.WriteString(c, want[5:]); err != nil {
				t.Error(err)
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
				t.Errorf("%q, %v", got, err)
			}
			_ = c.Close()
		}, nil},
		"the upstream leaves": {func(net.Conn) {}, time.Minute, func(t *testing.T, c net.Conn, _ *Canceler) {
			if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}, nil},
		"nobody says anything": {echo, 100 * time.Millisecond, func(_ *testing.T, c net.Conn, _ *Canceler) { _, _ = io.Copy(io.Discard, c) }, errIdle},
		"the exchange is canceled": {echo, time.Minute, func(t *testing.T, c net.Conn, canceler *Canceler) {
			canceler.Cancel(stop)
			_, _ = io.Copy(io.Discard, c)
		}, stop},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp, canceler := switching(t, tc.serve)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			far, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			near, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				ended <- resp.Tunnel(near, tc.idle)
				_ = near.Close()
			}()
			tc.do(t, far, canceler)
			select {
			case err := <-ended:
				if !errors.Is(err, tc.want) {
					t.Errorf("%v, want %v", err, tc.want)
				}
			case <-time.After(20 * time.Second):
				t.Error("the tunnel does not end")
			}
		})
	}
}

// Without being asked, an upstream cannot switch.
func TestUnrequestedUpgradeIsAnError(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		if c, err := ln.Accept(); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: thing\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	client := New(Config{Addr: ln.Addr().String()})
	defer client.Close()
	if _, err := client.Do(nil, &Request{Method: "GET", Path: []byte("/"), FirstByte: 5 * time.Second}); !errors.Is(err, ErrInvalidResponse) {
		t.Error(err)
	}
}
