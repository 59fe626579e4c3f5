//go:build !linux

package app

import "net"

// confined reports whether the process at the other end is an engine, which only Linux confines.
func confined(*net.UnixConn) bool { return false }
