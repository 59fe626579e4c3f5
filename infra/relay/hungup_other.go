//go:build !linux

package relay

import "syscall"

// hasHungUp: unknown on this system.
func hasHungUp(syscall.RawConn) bool { return false }
