package relay

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// ListenerConfig holds the limits of a Listener.
type ListenerConfig struct {
	// WriteTimeout bounds the write of each 64 KiB to a client, so that a client that stops reading is dropped while a
	// long response may take as long as it needs. Default 30 s; a write may be cut after 7/8 of it.
	WriteTimeout time.Duration
	// MaxConns bounds the open connections, MaxConnsPerIP those from one address (one /64 for IPv6); 0 means no bound.
	MaxConns, MaxConnsPerIP int
	// Proxies lists addresses exempt from MaxConnsPerIP, since many clients share each of them.
	Proxies []netip.Prefix
	// Refusal is sent, as far as the socket accepts it, on a TCP connection over a limit before it closes.
	Refusal []byte
}

// Listener wraps a listener so that fasthttp's connections have a deadline on each write and are counted. Leave
// fasthttp's own limits off: those per address hide the socket from Watcher, and its WriteTimeout bounds the whole
// response.
//
// The connections do not offer ReadFrom. sendfile and splice would run under a single deadline however long they take,
// and relayed bodies do not use them.
type Listener struct {
	net.Listener
	cfg ListenerConfig

	mu    sync.Mutex
	open  int
	perIP map[netip.Addr]int
}

// NewListener wraps ln.
func NewListener(ln net.Listener, cfg ListenerConfig) *Listener {
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 30*time.Second)
	return &Listener{Listener: ln, cfg: cfg, perIP: make(map[netip.Addr]int)}
}

var exhausted = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// acceptPause is how long Accept waits when the process or the system has no room for another connection.
const acceptPause = 20 * time.Millisecond

// Accept returns the next connection within the limits. It refuses and closes others. While there are no free file
// descriptors, it waits: with an error, fasthttp would end the server.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if errno, _ := errors.AsType[syscall.Errno](err); slices.Contains(exhausted, errno) {
			time.Sleep(acceptPause)
			continue
		}
		if err != nil {
			return nil, err
		}
		if tc, ok := nc.(*net.TCPConn); ok {
			_ = tc.SetNoDelay(true) // Go's default, but a wrapped listener may differ
		}
		ip := remoteIP(nc)
		if slices.ContainsFunc(l.cfg.Proxies, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			ip = netip.Addr{} // not counted
		}
		if !l.enter(ip) {
			if _, plain := nc.(*net.TCPConn); plain && len(l.cfg.Refusal) > 0 { // TLS would wait for the client's handshake
				_ = nc.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
				_, _ = nc.Write(l.cfg.Refusal)
			}
			_ = nc.Close()
			continue
		}
		return &serverConn{Conn: nc, l: l, ip: ip, timeout: l.cfg.WriteTimeout}, nil
	}
}

func (l *Listener) enter(ip netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cfg.MaxConns > 0 && l.open >= l.cfg.MaxConns {
		return false
	}
	if l.cfg.MaxConnsPerIP > 0 && ip.IsValid() {
		if l.perIP[ip] >= l.cfg.MaxConnsPerIP {
			return false
		}
		l.perIP[ip]++
	}
	l.open++
	return true
}

func (l *Listener) leave(ip netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.cfg.MaxConnsPerIP > 0 && ip.IsValid() {
		if l.perIP[ip]--; l.perIP[ip] == 0 {
			delete(l.perIP, ip)
		}
	}
}

// remoteIP returns the address to count by, or an invalid one for unix sockets.
func remoteIP(nc net.Conn) netip.Addr {
	ta, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := ta.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}

// serverConn is a client's connection. Only one goroutine writes at a time, as with net/http and fasthttp.
type serverConn struct {
	net.Conn
	l       *Listener
	ip      netip.Addr
	timeout time.Duration
	armed   time.Time // when the write deadline was last set
	linger  atomic.Bool
	closed  atomic.Bool

	unchunk bool   // what is written next is a chunked response, which is sent without its framing
	head    []byte // its head, as far as it was written; nil once it was sent
	chunks  chunkDecoder
}

// disableChunking ends a response to an HTTP/1.0 client, which knows no chunked encoding, by closing the connection.
// Call it last before the response is written.
func disableChunking(ctx *fasthttp.RequestCtx) {
	c, ok := ctx.Conn().(*serverConn)
	if ok && !ctx.Request.Header.IsHTTP11() && ctx.Response.IsBodyStream() && ctx.Response.Header.ContentLength() < 0 {
		ctx.SetConnectionClose()
		c.unchunk, c.head = true, []byte{}
	}
}

// Closing a connection with unread bytes resets it, and a client that is still sending loses the response that asked it
// to stop. Such a connection lingers: it closes its own half and reads on for a while.
const (
	lingerFor   = 2 * time.Second
	lingerBytes = 16 << 20
)

// Linger makes a Listener's connection linger on close, for clients that may still be sending.
func Linger(nc net.Conn) {
	if c, ok := nc.(*serverConn); ok {
		c.linger.Store(true)
	}
}

// writePiece is how many bytes of a long write go out between two looks at its deadline.
const writePiece = 64 << 10

// Write writes p, without its chunked framing if unchunk is set.
func (c *serverConn) Write(p []byte) (n int, err error) {
	if !c.unchunk {
		return c.write(p)
	}
	body := bytes.Clone(p)
	if c.head != nil {
		c.head = append(c.head, p...)
		n := headEnd(c.head, 0)
		if n == 0 {
			return len(p), nil
		}
		head := bytes.Replace(c.head[:n], []byte("Transfer-Encoding: chunked\r\n"), nil, 1)
		if _, err := c.write(head); err != nil {
			return 0, err
		}
		body, c.head = c.head[n:], nil
	}
	if body, _, err = c.chunks.decode(body); err == nil && len(body) > 0 {
		_, err = c.write(body)
	}
	return len(p), err
}

// write looks at the deadline before each piece of p, so that a client that slowly reads a long response is not dropped.
// Setting a deadline costs more than reading the clock, so it is set anew only when an eighth of it has passed.
func (c *serverConn) write(p []byte) (n int, err error) {
	for {
		if now := time.Now(); c.armed.IsZero() || now.Sub(c.armed) >= c.timeout/8 {
			if err := c.Conn.SetWriteDeadline(now.Add(c.timeout)); err != nil {
				return n, err
			}
			c.armed = now
		}
		m, err := c.Conn.Write(p[n:min(len(p), n+writePiece)])
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}

// SetDeadline sets only the read deadline: Write owns the write deadline.
func (c *serverConn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// SetWriteDeadline does nothing: Write owns the write deadline.
func (c *serverConn) SetWriteDeadline(time.Time) error { return nil }

// NetConn returns the socket, for Watcher.
func (c *serverConn) NetConn() net.Conn { return c.Conn }

// Close closes the connection, lingering if Linger asked for it, and removes it from the counts, once.
func (c *serverConn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return net.ErrClosed
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && c.linger.Load() {
		if half.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(lingerFor)) == nil {
			_, _ = io.CopyN(io.Discard, struct{ io.Reader }{c.Conn}, lingerBytes)
		}
	}
	c.l.leave(c.ip)
	return c.Conn.Close()
}
