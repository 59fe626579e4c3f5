package lambda

import (
	"context"
	"net"
	"sync"
)

// Listener is a net.Listener whose connections come from the same process. It is safe for concurrent use.
type Listener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{} // closed by Close
}

// NewListener makes a listener. Close it.
func NewListener() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for the next connection; net.ErrClosed after Close.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and Dial; connections go on.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr names the listener in logs.
func (l *Listener) Addr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "memory" }
func (addr) String() string  { return "lambda" }

// dial makes a connection that is accepted before dial returns.
func (l *Listener) dial(ctx context.Context) (*clientConn, error) {
	client, server := net.Pipe()
	c := &clientConn{Conn: client, served: make(chan struct{})}
	select {
	case l.conns <- &serverConn{Conn: server, served: c.served}:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// clientConn tells when the server is done with the connection: after an answer's last byte there is work yet.
type clientConn struct {
	net.Conn
	served chan struct{} // closed by the server's end
}

type serverConn struct {
	net.Conn
	once   sync.Once
	served chan struct{}
}

// Close closes the connection and says so to its client.
func (c *serverConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.served) })
	return err
}
