package sim

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// link is one process's way to Redis: all its connections, and what is wrong with them. It is safe for concurrent use.
type link struct {
	dial    func() (net.Conn, error)
	instant bool // waiting for a stalled peer times out at once

	mu      sync.Mutex
	conns   map[*conn]struct{}
	stalled bool
	cut     bool // refuses connections
	dead    bool // its process is gone
	garbled bool // events are lost, doubled and out of order
	lose    int  // so many more replies are lost, with their connections
	skip    int  // after so many more that arrive
	latency time.Duration
	change  chan struct{} // closed and replaced when any of this, or of a connection, changes
}

var errCut = errors.New("connection refused by the simulated network")

func newLink(dial func() (net.Conn, error), instant bool) *link {
	return &link{dial: dial, instant: instant, conns: map[*conn]struct{}{}, change: make(chan struct{})}
}

func (l *link) changedLocked() {
	close(l.change)
	l.change = make(chan struct{})
}

// Dial makes a connection.
func (l *link) Dial(ctx context.Context) (net.Conn, error) {
	for {
		l.mu.Lock()
		switch {
		case l.cut || l.dead:
			l.mu.Unlock()
			return nil, errCut
		case l.stalled && l.instant:
			l.mu.Unlock()
			return nil, os.ErrDeadlineExceeded
		case !l.stalled:
			l.mu.Unlock()
			inner, err := l.dial()
			if err != nil {
				return nil, err
			}
			c := &conn{Conn: inner, link: l}
			l.mu.Lock()
			l.conns[c] = struct{}{}
			l.mu.Unlock()
			go c.pump()
			return c, nil
		}
		wait := l.change
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wait:
		}
	}
}

// sever ends all connections; with refuse no new one is made until heal.
func (l *link) sever(refuse bool) {
	l.mu.Lock()
	l.cut = l.cut || refuse
	for c := range l.conns {
		c.failLocked(net.ErrClosed)
	}
	l.changedLocked()
	l.mu.Unlock()
}

// kill is sever for ever.
func (l *link) kill() {
	l.mu.Lock()
	l.dead = true
	l.mu.Unlock()
	l.sever(true)
}

// stall holds everything back that is sent either way.
func (l *link) stall() {
	l.mu.Lock()
	l.stalled = true
	l.changedLocked()
	l.mu.Unlock()
}

// loseReplies makes n replies get lost, after skip others, once Redis did what it was asked.
func (l *link) loseReplies(n, skip int) {
	l.mu.Lock()
	l.lose, l.skip = n, skip
	l.mu.Unlock()
}

// garble makes every fourth event get lost, one in four come twice, and one in four after the next one.
func (l *link) garble() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.garbled = true
}

// heal ends cuts and stalls; what was held back is delivered, also of connections whose process gave them up.
func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.stalled, l.garbled, l.lose = false, false, false, 0
	for c := range l.conns {
		if out := c.out; len(out) > 0 {
			c.out = nil
			closed := c.closed
			go func() {
				_, _ = c.Conn.Write(out)
				if closed {
					_ = c.Conn.Close()
				}
			}()
		}
	}
	l.changedLocked()
}

// conn is one connection. link.mu guards its fields.
type conn struct {
	net.Conn
	link *link

	in       []byte // received, not yet read
	out      []byte // written into a stall
	late     []late // written over a slow way, in order
	carrier  bool   // a goroutine delivers late
	err      error
	closed   bool
	listens  bool   // carries a subscription, whose messages are no replies
	partial  []byte // the beginning of a message, while events are garbled
	held     []byte // an event that comes after the next one
	events   int    // that came while they were garbled
	greeted  bool   // the greeting is over
	deadline time.Time
}

// late is what arrives at a moment.
type late struct {
	at   time.Time
	text []byte
}

// deliver brings what is late to Redis.
func (c *conn) deliver() {
	for {
		c.link.mu.Lock()
		if len(c.late) == 0 || c.err != nil {
			c.late, c.carrier = nil, false
			if c.closed {
				c.failLocked(net.ErrClosed)
			}
			c.link.mu.Unlock()
			return
		}
		next := c.late[0]
		c.link.mu.Unlock()
		time.Sleep(time.Until(next.at))
		_, _ = c.Conn.Write(next.text)
		c.link.mu.Lock()
		c.late = c.late[1:]
		c.link.mu.Unlock()
	}
}

func (c *conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	_ = c.Conn.Close()
	delete(c.link.conns, c)
}

// pump reads what Redis sends, so that Redis never waits for a reader.
func (c *conn) pump() {
	b := make([]byte, 16<<10)
	for {
		n, err := c.Conn.Read(b)
		c.link.mu.Lock()
		reply := n > 0 && c.link.lose > 0 && !c.listens
		if reply && c.link.skip == 0 {
			c.link.lose--
			err = net.ErrClosed
		} else {
			if reply {
				c.link.skip--
			}
			c.in = append(c.in, c.heardLocked(b[:n])...)
		}
		if err != nil {
			c.failLocked(err)
		}
		c.link.changedLocked()
		c.link.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// heardLocked is what the process hears of what Redis sent.
func (c *conn) heardLocked(b []byte) (out []byte) {
	c.partial = append(c.partial, b...)
	if !c.listens || !c.link.garbled {
		out = append(c.held, c.partial...)
		c.held, c.partial = nil, nil
		return out
	}
	for m := message(c.partial); m != nil; m = message(c.partial) {
		c.partial = c.partial[len(m):]
		if !bytes.Contains(m, []byte("\r\nmessage\r\n")) {
			out = append(out, m...)
			continue
		}
		switch c.events++; c.events % 4 {
		case 0: // lost
		case 1:
			out = append(append(out, m...), m...)
		case 2:
			c.held = bytes.Clone(m)
		case 3:
			out = append(append(out, m...), c.held...)
			c.held = nil
		}
	}
	return out
}

// message is the first whole message that b begins with, nil if there is none yet.
func message(b []byte) []byte {
	rest := b
	for parts := 1; parts > 0; parts-- {
		header, after, whole := bytes.Cut(rest, []byte("\r\n"))
		if !whole || len(header) == 0 {
			return nil
		}
		n, _ := strconv.Atoi(string(header[1:]))
		switch header[0] {
		case '*', '>':
			parts += n
		case '$':
			if len(after) < n+2 {
				return nil
			}
			after = after[n+2:]
		}
		rest = after
	}
	return b[:len(b)-len(rest)]
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for {
		c.link.mu.Lock()
		switch {
		case c.closed:
			c.link.mu.Unlock()
			return 0, net.ErrClosed
		case len(c.in) > 0 && !c.link.stalled:
			n := copy(p, c.in)
			c.in = c.in[n:]
			c.link.mu.Unlock()
			return n, nil
		case c.err != nil && !c.link.stalled:
			err := c.err
			c.link.mu.Unlock()
			return 0, err
		case c.link.stalled && (c.link.instant && !c.listens || !c.greeted):
			// Also a greeting: the client holds a mutex meanwhile.
			c.link.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		change, deadline := c.link.change, c.deadline
		c.link.mu.Unlock()
		if !await(change, deadline) {
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// await waits for a change until the deadline; false when that comes first.
func await(change <-chan struct{}, deadline time.Time) bool {
	if deadline.IsZero() {
		<-change
		return true
	}
	d := time.Until(deadline)
	if d <= 0 {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-change:
		return true
	case <-t.C:
		return false
	}
}

// Write implements net.Conn. It never waits: who writes may hold a mutex, and who waits for a mutex stops the virtual clock.
func (c *conn) Write(p []byte) (int, error) {
	c.link.mu.Lock()
	if bytes.Contains(p, []byte("subscribe")) {
		c.listens = true
	}
	c.greeted = c.greeted || !bytes.Contains(p, []byte("\r\nhello\r\n")) && !bytes.Contains(p, []byte("\r\nclient\r\n"))
	switch {
	case c.closed, c.err != nil:
		c.link.mu.Unlock()
		return 0, net.ErrClosed
	case c.link.stalled:
		c.out = append(c.out, p...)
		c.link.mu.Unlock()
		return len(p), nil
	case c.greeted && (c.link.latency > 0 || c.carrier):
		c.late = append(c.late, late{time.Now().Add(c.link.latency), bytes.Clone(p)})
		if !c.carrier {
			c.carrier = true
			go c.deliver()
		}
		c.link.mu.Unlock()
		return len(p), nil
	}
	c.link.mu.Unlock()
	return c.Conn.Write(p)
}

// Close implements net.Conn. What was written into a stall or over a slow way is still on its way.
func (c *conn) Close() error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	if len(c.out) == 0 && !c.carrier {
		c.failLocked(net.ErrClosed)
	}
	c.link.changedLocked()
	return nil
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.deadline = t
	c.link.changedLocked()
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
