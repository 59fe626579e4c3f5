package front

import (
	"io"
	"net"
	"time"
)

// A connection that is closed while unread bytes lie in it is reset, and a client that is still sending loses the answer
// that told it to stop. Such a connection lingers: it ends its own half and reads on for a while.
const (
	lingerFor   = 2 * time.Second
	lingerBytes = 16 << 20
)

// lingerListener makes connections that can linger.
type lingerListener struct{ net.Listener }

// Accept returns the next connection.
func (l lingerListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &lingerConn{Conn: nc}, nil
}

// lingerConn belongs to the goroutine that serves it.
type lingerConn struct {
	net.Conn
	linger bool
}

// lingerOf makes the connection linger when it is closed.
func lingerOf(nc net.Conn) {
	if w, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = w.NetConn()
	}
	if c, ok := nc.(*lingerConn); ok {
		c.linger = true
	}
}

// NetConn is the socket, for relay.Watcher.
func (c *lingerConn) NetConn() net.Conn { return c.Conn }

// Close closes the connection, after lingering where that was asked for.
func (c *lingerConn) Close() error {
	if tc, ok := c.Conn.(*net.TCPConn); ok && c.linger {
		c.linger = false
		if tc.CloseWrite() == nil && tc.SetReadDeadline(time.Now().Add(lingerFor)) == nil {
			_, _ = io.CopyN(io.Discard, struct{ io.Reader }{tc}, lingerBytes)
		}
	}
	return c.Conn.Close()
}
