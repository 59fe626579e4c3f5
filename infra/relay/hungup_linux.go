package relay

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// hasHungUp reports whether the peer has closed its half of the connection, or all of it.
func hasHungUp(sock syscall.RawConn) (gone bool) {
	_ = sock.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0)
		gone = err == nil && n > 0
	})
	return gone
}
