//go:build !unix

package relay

// rawReads is false, as this system has no portable way to read a socket by hand. A waiting connection keeps its
// buffer, and a stale idle connection is noticed only when it is used.
const rawReads = false

func (c *conn) tryRead(uintptr) bool { return true }

func (c *conn) tryPeek(uintptr) {}
