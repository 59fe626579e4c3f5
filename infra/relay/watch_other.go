//go:build !linux

package relay

import "syscall"

// poller watches nothing where there is no epoll.
type poller struct{}

func (*poller) open(func(int64)) bool          { return true }
func (poller) add(syscall.RawConn, int64) bool { return true }
func (poller) remove(syscall.RawConn)          {}
func (poller) close()                          {}
