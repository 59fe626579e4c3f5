package testenv

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// FaultProxy is a TCP relay between a client and a server that a test can make slow, silent
// or broken. Its faults act on both directions and, except Cut, on connections opened
// before and after. Safe for concurrent use.
type FaultProxy struct {
	// Addr is where clients connect, host:port.
	Addr string

	target string
	ln     net.Listener
	done   sync.WaitGroup // the accept loop and all copies

	mu      sync.Mutex
	conns   map[net.Conn]struct{} // both ends of every open pair
	delay   time.Duration
	refuse  bool
	closed  bool
	text    string        // of LoseReply
	loser   net.Conn      // the client that sent it
	lost    chan struct{} // closed when its reply was lost
	resumed chan struct{} // closed while bytes may flow; replaced by Pause
}

// NewFlaky starts a relay to target (host:port) that behaves until told otherwise. It
// ends with the test.
func NewFlaky(t testing.TB, target string) *FaultProxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal("testenv: relay:", err)
	}
	open := make(chan struct{})
	close(open)
	f := &FaultProxy{
		Addr: ln.Addr().String(), target: target, ln: ln,
		conns: map[net.Conn]struct{}{}, resumed: open,
	}
	f.done.Go(f.accept)
	t.Cleanup(f.close)
	return f
}

// Delay makes every block of bytes wait for d before it is passed on; 0 ends that.
func (f *FaultProxy) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Pause stops the flow of bytes while connections stay open, as a network that lost its
// route does, until Resume.
func (f *FaultProxy) Pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flowingLocked() {
		f.resumed = make(chan struct{})
	}
}

// Resume ends a Pause; what was held back is delivered.
func (f *FaultProxy) Resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.flowingLocked() {
		close(f.resumed)
	}
}

// Cut resets every open connection. New ones are accepted.
func (f *FaultProxy) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, not an orderly end
		}
		_ = c.Close()
	}
}

// Refuse makes new connections be reset at once, or ends that.
func (f *FaultProxy) Refuse(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = on
}

// LoseReply loses what the server answers to the next request that holds a text, and closes its connection. The channel is
// closed then.
func (f *FaultProxy) LoseReply(text string) (lost <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text, f.lost = text, make(chan struct{})
	return f.lost
}

// loses reports whether bytes are those of LoseReply.
func (f *FaultProxy) loses(dst, src net.Conn, b []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.text != "" && src.LocalAddr().String() == f.Addr && bytes.Contains(b, []byte(f.text)) {
		f.text, f.loser = "", src
	}
	if f.loser == nil || dst != f.loser {
		return false
	}
	f.loser = nil
	close(f.lost)
	return true
}

// Open returns how many clients are connected through the relay.
func (f *FaultProxy) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns) / 2
}

func (f *FaultProxy) flowingLocked() bool {
	select {
	case <-f.resumed:
		return true
	default:
		return false
	}
}

func (f *FaultProxy) accept() {
	for {
		client, err := f.ln.Accept()
		if err != nil {
			return // closed
		}
		f.done.Go(func() { f.relay(client) })
	}
}

// relay copies both ways until one side ends.
func (f *FaultProxy) relay(client net.Conn) {
	f.mu.Lock()
	refuse := f.refuse
	f.mu.Unlock()
	var server net.Conn
	var err error
	if !refuse {
		server, err = net.DialTimeout("tcp", f.target, 5*time.Second)
	}
	if refuse || err != nil {
		_ = client.(*net.TCPConn).SetLinger(0)
		_ = client.Close()
		return
	}
	if !f.add(client, server) {
		return
	}
	defer f.remove(client, server)
	var both sync.WaitGroup
	both.Go(func() { f.copy(server, client) })
	both.Go(func() { f.copy(client, server) })
	both.Wait()
}

// copy passes bytes on, subject to the faults, and passes the end on as a half-close. A
// failed write ends both directions.
func (f *FaultProxy) copy(dst, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if f.loses(dst, src, buf[:n]) {
			f.remove(dst, src)
			return
		}
		if n > 0 {
			f.hold()
			if _, werr := dst.Write(buf[:n]); werr != nil {
				_ = src.Close()
				return
			}
		}
		if err != nil {
			_ = dst.(*net.TCPConn).CloseWrite()
			return
		}
	}
}

// hold waits as the faults of the moment ask.
func (f *FaultProxy) hold() {
	f.mu.Lock()
	delay, resumed := f.delay, f.resumed
	f.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay)
	}
	<-resumed
}

func (f *FaultProxy) add(pair ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range pair {
		if f.closed {
			_ = c.Close()
			continue
		}
		f.conns[c] = struct{}{}
	}
	return !f.closed
}

func (f *FaultProxy) remove(pair ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range pair {
		_ = c.Close()
		delete(f.conns, c)
	}
}

func (f *FaultProxy) close() {
	_ = f.ln.Close()
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.Resume()
	f.Cut()
	f.done.Wait()
}
