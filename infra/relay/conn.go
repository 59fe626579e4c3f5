package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

var (
	errDeadline = errors.New("deadline reached")
	errFull     = errors.New("buffer full")
)

// conn is one upstream connection and the bytes read from it but not yet used. It belongs to one goroutine at a time;
// another goroutine may only close nc (Canceler.Cancel).
type conn struct {
	nc   net.Conn
	sock syscall.RawConn // under nc, nil if there is none
	raw  syscall.RawConn // read by hand, so that a connection waiting for bytes holds no buffer; nil if nc is not a plain socket

	buf    *[]byte // nil while there is nothing unread
	lo, hi int     // unread is (*buf)[lo:hi]
	big    bool    // the next buffer is a big one

	readFn func(fd uintptr) bool // c.tryRead, made once
	nowFn  func(fd uintptr)      // c.readNow's callback, made once
	peekFn func(fd uintptr)      // c.tryPeek, made once
	n      int                   // result of readFn and nowFn
	err    error                 // result of readFn and nowFn
	stale  bool                  // result of peekFn
	peeked [1]byte

	// Deadlines are lazy: one that is early enough stays, and one that fires too early is set again. A stream of many
	// short waits therefore rarely touches the runtime's timers.
	readDeadline, writeDeadline time.Time

	idleSince time.Time
	vec       net.Buffers // for writing head and body together
	parts     [2][]byte
	tail      []byte // memory for Response.tail
}

func newConn(nc net.Conn) *conn {
	c := &conn{nc: nc, sock: socketOf(nc), raw: rawConn(nc)}
	c.readFn, c.peekFn = c.tryRead, c.tryPeek
	c.nowFn = func(fd uintptr) { c.tryRead(fd) }
	return c
}

// rawConn returns the socket under nc, or nil if its bytes are not those of the stream.
func rawConn(nc net.Conn) syscall.RawConn {
	switch nc := nc.(type) {
	case *net.TCPConn:
		raw, _ := nc.SyscallConn()
		return raw
	case *net.UnixConn:
		raw, _ := nc.SyscallConn()
		return raw
	}
	return nil
}

// unread returns bytes read from the socket and not used yet.
func (c *conn) unread() []byte {
	if c.buf == nil {
		return nil
	}
	return (*c.buf)[c.lo:c.hi]
}

// drop returns the buffer to the pool and discards any unread bytes.
func (c *conn) drop() {
	if c.buf != nil {
		putBuffer(c.buf)
		c.buf = nil
	}
	c.lo, c.hi = 0, 0
}

// fill waits for bytes and appends them to the unread ones. It returns io.EOF at an orderly end, errDeadline if due
// passed and nothing can be read (the zero time never passes), and errFull if a big buffer is full.
func (c *conn) fill(due time.Time) error {
	if c.lo == c.hi {
		c.drop()
	} else if c.hi == len(*c.buf) && c.lo == 0 {
		if len(*c.buf) == bigBuffer {
			return errFull
		}
		more := getBuffer(true)
		copy(*more, *c.buf)
		putBuffer(c.buf)
		c.buf = more
	} else if c.hi == len(*c.buf) {
		c.hi = copy(*c.buf, c.unread())
		c.lo = 0
	}
	if !due.IsZero() && (c.readDeadline.IsZero() || c.readDeadline.After(due)) {
		if err := c.setReadDeadline(due); err != nil {
			return err
		}
	}
	for {
		n, err := c.read()
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if late && !due.IsZero() && !time.Now().Before(due) {
			// The expired deadline stays set. The next fill that needs a later one moves it.
			n, err = c.readNow()
			late = false
		}
		if n > 0 {
			// If a read fills the buffer, more is likely to follow.
			c.big = c.hi+n == len(*c.buf)
			c.hi += n
			return nil
		}
		if !late {
			return err
		}
		if err := c.setReadDeadline(due); err != nil {
			return err
		}
	}
}

func (c *conn) setReadDeadline(due time.Time) error {
	c.readDeadline = due
	return c.nc.SetReadDeadline(due)
}

// read reads once into the free part of the buffer, and takes a buffer if there is none.
func (c *conn) read() (int, error) {
	if c.raw != nil {
		c.n, c.err = 0, nil
		if err := c.raw.Read(c.readFn); err != nil {
			return 0, err
		}
		return c.result()
	}
	if c.buf == nil {
		c.buf = getBuffer(c.big)
	}
	n, err := c.nc.Read((*c.buf)[c.hi:])
	if n == 0 && c.hi == 0 {
		c.drop()
	}
	return n, err
}

// tryRead reads once without blocking. False makes the runtime's poller wait for the socket and call again.
func (c *conn) tryRead(fd uintptr) bool {
	if c.buf == nil {
		c.buf = getBuffer(c.big)
	}
	for {
		c.n, c.err = syscall.Read(int(fd), (*c.buf)[c.hi:])
		if c.err != syscall.EINTR {
			break
		}
	}
	if c.n <= 0 && c.hi == 0 {
		c.drop()
	}
	return c.err != syscall.EAGAIN
}

// readNow reads what has arrived once the deadline has passed, since read would fail without trying. It returns
// errDeadline if nothing has.
func (c *conn) readNow() (int, error) {
	if c.raw == nil {
		return 0, errDeadline
	}
	c.n, c.err = 0, nil
	if err := c.raw.Control(c.nowFn); err != nil {
		return 0, err
	}
	if c.err == syscall.EAGAIN {
		return 0, errDeadline
	}
	return c.result()
}

// result returns the result of tryRead as an io.Reader would.
func (c *conn) result() (int, error) {
	if c.n <= 0 && c.err == nil {
		return 0, io.EOF
	}
	return max(c.n, 0), c.err
}

// isStale reports whether the upstream has closed an idle connection, or sent unexpected bytes on it.
func (c *conn) isStale() bool {
	if c.sock == nil {
		return false
	}
	c.stale = true // stale unless Control succeeds, so that the connection is closed
	_ = c.sock.Control(c.peekFn)
	return c.stale
}

// tryPeek checks whether an idle connection is still open and silent.
func (c *conn) tryPeek(fd uintptr) {
	for {
		_, _, err := syscall.Recvfrom(int(fd), c.peeked[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if err != syscall.EINTR {
			c.stale = err != syscall.EAGAIN
			return
		}
	}
}

// write sends head and body, in one write if the body fits into the space after head. n counts the bytes that the
// socket took. The socket has at least half of timeout for each piece of a long body.
func (c *conn) write(head, body []byte, timeout time.Duration) (n int64, err error) {
	const piece = 4 << 20
	small := len(body) <= cap(head)-len(head)
	if !small || !c.writeDeadline.IsZero() { // a small request cannot block on an empty socket buffer, but an earlier deadline may have passed
		if err := c.setWriteDeadline(timeout); err != nil {
			return 0, err
		}
	}
	if small {
		m, err := c.nc.Write(append(head, body...))
		return int64(m), err
	}
	first := body[:min(len(body), piece)]
	c.parts = [2][]byte{head, first}
	c.vec = c.parts[:]
	n, err = c.vec.WriteTo(c.nc)
	c.parts = [2][]byte{}
	for body = body[len(first):]; err == nil && len(body) > 0; {
		next := body[:min(len(body), piece)]
		if err = c.setWriteDeadline(timeout); err != nil {
			break
		}
		var m int
		m, err = c.nc.Write(next)
		n += int64(m)
		body = body[len(next):]
	}
	return n, err
}

func (c *conn) setWriteDeadline(timeout time.Duration) error {
	now := time.Now()
	if c.writeDeadline.Sub(now) >= timeout/2 {
		return nil
	}
	c.writeDeadline = now.Add(timeout)
	return c.nc.SetWriteDeadline(c.writeDeadline)
}
