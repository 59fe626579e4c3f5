//go:build !linux

package relay

import "syscall"

// hungUp: not known here.
func hungUp(syscall.RawConn) bool { return false }
