package relay

import "sync"

// Canceler lets another goroutine end one exchange, whatever the exchange is waiting for. The zero value is ready to
// use. A Canceler outlives its exchange and serves one exchange at a time. It must not be copied.
type Canceler struct {
	mu    sync.Mutex
	cause error
	conn  *conn
	next  func(cause error) // see Link
}

// Cancel ends the exchange by closing its upstream connection. Do, Await and Read then return an error that matches
// ErrCanceled and cause (nil means ErrClientGone). Only the first cause counts. A new exchange with the same Canceler
// fails immediately. Cancel is safe from any goroutine and harmless after the exchange has ended. It does not interrupt
// a dial in progress, which Config.ConnectTimeout bounds.
func (c *Canceler) Cancel(cause error) {
	if cause == nil {
		cause = ErrClientGone
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
		// Close under the lock: between the test and the close, unbind cannot make the connection idle, where another
		// exchange could get it.
		_ = c.conn.nc.Close()
	}
}

// Cause returns the cause given to Cancel, or nil.
func (c *Canceler) Cause() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// bind makes Cancel close cn. It returns false if Cancel was already called.
func (c *Canceler) bind(cn *conn) bool {
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
func (c *Canceler) unbind() bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = nil
	return c.cause == nil
}

// Link has Cancel call next, which must not block, until Unlink. It returns false, and links nothing, if Cancel was
// already called.
func (c *Canceler) Link(next func(cause error)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return false
	}
	c.next = next
	return true
}

// Unlink undoes Link. After it returns, next is not running and will not run.
func (c *Canceler) Unlink() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = nil
}
