//go:build unix

package relay

import "syscall"

// rawReads says that sockets are read by hand, so that a connection waiting for bytes holds no buffer.
const rawReads = true

// tryRead reads once without blocking. False makes the runtime's poller wait for the socket and call again.
func (c *conn) tryRead(fd uintptr) bool {
	if c.buf == nil {
		c.buf = takeBuffer(c.big)
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
