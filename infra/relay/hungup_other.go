//go:build !linux

package relay

import "syscall"

// hasHungUp: not known here.
func hasHungUp(syscall.RawConn) bool { return false }
