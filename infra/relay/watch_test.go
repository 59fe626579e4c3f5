//go:build linux

package relay

import (
	"bufio"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/testenv/kit"
)

// held serves requests that end when their client leaves or finish is closed.
func held(t *testing.T, w *Watcher, gone *atomic.Int32, finish <-chan struct{}) string {
	return frontend(t, ListenerConfig{}, func(ctx *fasthttp.RequestCtx) {
		left := make(chan struct{})
		watch := w.Arm(ctx.Conn(), func() { close(left) })
		defer watch.Stop()
		select {
		case <-left:
			gone.Add(1)
		case <-finish:
		case <-time.After(kit.Patience):
			t.Error("neither gone nor finished")
		}
	})
}

const simpleGet = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

func TestWatchReportsClientsThatLeave(t *testing.T) {
	for name, leave := range map[string]func(*rawClient){
		"close":      func(c *rawClient) { _ = c.Close() },
		"half-close": func(c *rawClient) { _ = c.Conn.(*net.TCPConn).CloseWrite() },
		"reset":      func(c *rawClient) { _ = c.Conn.(*net.TCPConn).SetLinger(0); _ = c.Close() },
		// Pipelined bytes precede the FIN.
		"pipelined": func(c *rawClient) { c.send(simpleGet); _ = c.Close() },
	} {
		for _, delay := range []time.Duration{time.Millisecond, 100 * time.Millisecond} {
			t.Run(name+" "+delay.String(), func(t *testing.T) {
				var gone atomic.Int32
				finish := make(chan struct{})
				defer close(finish)
				client := dialRaw(t, held(t, NewWatcher(delay), &gone, finish))
				client.send(simpleGet)
				time.Sleep(20 * time.Millisecond) // before or after the watch starts, depending on the delay
				leave(client)
				kit.Eventually(t, "the departure is noticed", func() bool { return gone.Load() > 0 })
			})
		}
	}
}

func TestKeepAliveAfterWatching(t *testing.T) {
	var gone atomic.Int32
	finish := make(chan struct{})
	client := dialRaw(t, held(t, NewWatcher(time.Millisecond), &gone, finish))
	client.send(simpleGet + simpleGet) // pipelined
	time.Sleep(50 * time.Millisecond)
	if gone.Load() != 0 {
		t.Fatal("a present client was reported gone")
	}
	close(finish)
	for i := range 20 {
		client.until("\r\n\r\n")
		if i > 0 {
			client.send(simpleGet)
		}
	}
	client.until("\r\n\r\n")
	if gone.Load() != 0 {
		t.Fatal("a present client was reported gone")
	}
}

func TestWatchOfAThousandClients(t *testing.T) {
	const clients = 1000
	var gone atomic.Int32
	finish := make(chan struct{})
	defer close(finish)
	addr := held(t, NewWatcher(50*time.Millisecond), &gone, finish)
	conns := make([]*rawClient, clients)
	for i := range conns {
		conns[i] = dialRaw(t, addr)
		conns[i].send(simpleGet)
	}
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for i := part; i < clients; i += 4 {
				_ = conns[i].Close()
			}
		})
	}
	wg.Wait()
	kit.Eventually(t, "all departures are noticed", func() bool { return gone.Load() == clients })
}

// When the client leaves, a stream with a silent engine ends, and so does the engine's connection.
func TestClientThatLeavesCancelsTheUpstream(t *testing.T) {
	ended := make(chan struct{}, 1)
	outcome := make(chan error, 1)
	c := newUpstream(t, silent(sseHead+chunk("data: a\n\n"), ended)).client(t, Config{})
	w := NewWatcher(time.Millisecond)
	addr := frontend(t, ListenerConfig{}, func(ctx *fasthttp.RequestCtx) {
		canceler := new(Canceler)
		watch := w.Arm(ctx.Conn(), func() { canceler.Cancel(ErrClientGone) })
		r, err := c.Do(canceler, get("/"))
		if err != nil {
			t.Error(err)
			watch.Stop()
			return
		}
		r.OnEnd = func(err error) {
			watch.Stop()
			outcome <- err
		}
		r.SendTo(ctx)
	})
	client := dialRaw(t, addr)
	client.send(simpleGet)
	client.until("data: a\n\n")
	_ = client.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the upstream was not notified")
	}
	if err := <-outcome; err == nil || !strings.Contains(err.Error(), "client gone") {
		t.Fatal(err)
	}
}

// Arms and stops watches at any moment around the delay and the departure.
func TestWatchChurn(t *testing.T) {
	w := NewWatcher(100 * time.Microsecond)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				a, b := socketPair(t)
				var called, stopped atomic.Bool
				watch := w.Arm(a, func() {
					if stopped.Load() {
						t.Error("onGone after Stop")
					}
					called.Store(true)
				})
				time.Sleep(time.Duration((i*7+g*13)%5) * 50 * time.Microsecond)
				if i%3 > 0 {
					_ = b.Close()
				}
				time.Sleep(time.Duration((i*5+g*3)%4) * 50 * time.Microsecond)
				watch.Stop()
				stopped.Store(true)
				if i%3 == 0 && called.Load() {
					t.Error("onGone without a departure")
				}
				_ = b.Close()
				_ = a.Close()
			}
		})
	}
	wg.Wait()
}

func socketPair(t testing.TB) (server, client net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	client, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

func TestWatchUnixSocketAndPipe(t *testing.T) {
	w := NewWatcher(time.Millisecond)
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	client, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	left := make(chan struct{})
	watch := w.Arm(server, func() { close(left) })
	_ = client.Close()
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatal("departure over a unix socket not noticed")
	}
	watch.Stop()

	a, b := net.Pipe() // no socket: nothing happens, nothing breaks
	watch = w.Arm(a, func() { t.Error("a pipe was watched") })
	_ = b.Close()
	time.Sleep(20 * time.Millisecond)
	watch.Stop()
	_ = a.Close()
	(*Watch)(nil).Stop()
}

// The watch must not change the server's read deadline: an idle connection still times out.
func TestWatchLeavesDeadlines(t *testing.T) {
	w := NewWatcher(time.Millisecond)
	server, client := socketPair(t)
	defer func() { _ = server.Close(); _ = client.Close() }()
	_ = server.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	watch := w.Arm(server, func() { t.Error("not gone") })
	time.Sleep(20 * time.Millisecond)
	watch.Stop()
	if _, err := bufio.NewReader(server).ReadByte(); err == nil || !err.(net.Error).Timeout() {
		t.Fatal(err)
	}
}
