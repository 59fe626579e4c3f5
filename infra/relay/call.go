package relay

import "sync"

// Call lets another goroutine end one exchange, whatever the exchange is waiting for. The zero value is ready to use. A
// Call outlives its exchange and serves one exchange at a time. It must not be copied.
type Call struct {
	mu    sync.Mutex
	cause error
	conn  *conn
	next  func(cause error) // see Link
}

// Cancel ends the exchange by closing its upstream connection. Do, Await and Read then return an error that matches
// ErrCancelled and cause (nil means ErrGone). Only the first cause counts. Until Reset, a new exchange with the same
// Call fails immediately. Cancel is safe from any goroutine and harmless after the exchange has ended. It does not
// interrupt a dial in progress, which Config.ConnectTimeout bounds.
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
	if c.next != nil {
		c.next(cause)
	}
	if c.conn != nil {
		// Close under the lock: between the test and the close, unbind cannot return the connection to the pool, where
		// another call could get it.
		_ = c.conn.nc.Close()
	}
}

// Cause returns the cause given to Cancel, or nil.
func (c *Call) Cause() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// bind makes Cancel close cn. It returns false if the call was already cancelled.
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

// unbind detaches the connection from Cancel. It returns false if Cancel has closed it.
func (c *Call) unbind() bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = nil
	return c.cause == nil
}

// Link has Cancel call next, which must not block, until Unlink. It returns false, and links nothing, if the call was
// already cancelled.
func (c *Call) Link(next func(cause error)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return false
	}
	c.next = next
	return true
}

// Unlink undoes Link. After it returns, next is not running and will not run.
func (c *Call) Unlink() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = nil
}
