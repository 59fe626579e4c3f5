package relay

import (
	"cmp"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ListenerConfig holds the limits of a Listener.
type ListenerConfig struct {
	// WriteTimeout bounds the writing of each 64 KiB to a client, so that one who stops reading is shed while a long
	// answer may take as long as it takes; default 30 s, and a write may be cut after 7/8 of it. Negative is no bound.
	WriteTimeout time.Duration
	// MaxConns bounds the open connections, MaxConnsPerIP those from one address (for IPv6: one /64); 0 is no bound.
	MaxConns, MaxConnsPerIP int
	// Proxies are addresses that MaxConnsPerIP does not bound, since many clients come from each.
	Proxies []netip.Prefix
	// Refusal is written, as far as the socket takes it, to a connection over a limit before it is closed.
	Refusal []byte
}

// Listener wraps a listener so that fasthttp's connections have a deadline on each write and are counted. fasthttp's own
// limits per address hide the socket from Watcher, and its WriteTimeout bounds the whole answer; leave both off.
//
// Its connections do not offer ReadFrom: sendfile and splice would run under one deadline however long they take, and
// relayed bodies do not use them.
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

// Accept returns the next connection within the limits; others are refused and closed.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
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
			if len(l.cfg.Refusal) > 0 {
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

// remoteIP is the address to count by, invalid where there is none (unix sockets).
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

// serverConn is a client's connection. Writes come from one goroutine at a time, as net/http's and fasthttp's do.
type serverConn struct {
	net.Conn
	l       *Listener
	ip      netip.Addr
	timeout time.Duration
	armed   time.Time // when the write deadline was last set
	linger  atomic.Bool
	closed  atomic.Bool
}

// A connection that is closed while unread bytes lie in it is reset, and a client that is still sending loses the answer
// that told it to stop. Such a connection lingers: it ends its own half and reads on for a while.
const (
	lingerFor   = 2 * time.Second
	lingerBytes = 16 << 20
)

// Linger makes a connection of a Listener linger when it is closed, where the client may still be sending.
func Linger(nc net.Conn) {
	for nc != nil {
		if c, ok := nc.(*serverConn); ok {
			c.linger.Store(true)
			return
		}
		w, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return
		}
		nc = w.NetConn()
	}
}

// writePiece is how much of a long write is put under one deadline.
const writePiece = 64 << 10

// Write writes each piece of p under a deadline of its own, so a client that reads a long answer slowly is not shed for
// its length. Setting a deadline costs more than reading the clock, so one serves until an eighth of it has passed.
func (c *serverConn) Write(p []byte) (n int, err error) {
	if c.timeout <= 0 {
		return c.Conn.Write(p)
	}
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

// SetDeadline sets the read deadline only: the write deadline belongs to Write, unless that has none.
func (c *serverConn) SetDeadline(t time.Time) error {
	if c.timeout > 0 {
		return c.Conn.SetReadDeadline(t)
	}
	return c.Conn.SetDeadline(t)
}

// SetWriteDeadline does nothing: the write deadline belongs to Write, unless that has none.
func (c *serverConn) SetWriteDeadline(t time.Time) error {
	if c.timeout > 0 {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// NetConn is the socket, for Watcher.
func (c *serverConn) NetConn() net.Conn { return c.Conn }

// Close closes the connection, after lingering where Linger asked for it, and counts it off, once.
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
