package relay

import "sync"

// Call is the switch with which another goroutine ends one exchange, whatever it waits for. The zero value is ready.
// A Call outlives the exchange it is used for and serves one exchange at a time; it must not be copied.
type Call struct {
	mu    sync.Mutex
	cause error
	conn  *conn
}

// Cancel ends the exchange by closing its upstream connection; Do, Await and Read then return an error that matches
// ErrCancelled and cause (nil means ErrGone). Only the first cause counts. An exchange started later with the same Call
// fails at once, until Reset. Safe from any goroutine and harmless after the exchange ended.
// A dial in progress is not cut short; it is bounded by Config.ConnectTimeout.
func (c *Call) Cancel(cause error) {
	if cause == nil {
		cause = ErrGone
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	c.cause = cause
	if c.conn != nil {
		// Closing under the lock: unbind cannot hand the connection back to the pool, and so to another call,
		// between the test and the close.
		_ = c.conn.nc.Close()
	}
}

// Cause is the cause given to Cancel, or nil.
func (c *Call) Cause() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// bind makes Cancel close cn; false means the call was cancelled before.
func (c *Call) bind(cn *conn) bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return false
	}
	c.conn = cn
	return true
}

// unbind ends the hold of Cancel on the connection; false means Cancel has closed it.
func (c *Call) unbind() bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = nil
	return c.cause == nil
}
