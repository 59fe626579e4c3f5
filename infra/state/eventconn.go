package state

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// maxEvent bounds an event in bytes. The pool's own have a few hundred.
const maxEvent = 1 << 20

// bound is a hook for clients of one node that bounds the connections of subscriptions.
type bound struct{}

var _ redis.Hook = bound{}

type subscribes struct{} // context key that marks a subscription's context

// subscribing marks ctx as the context of a subscription.
func subscribing(ctx context.Context) context.Context {
	return context.WithValue(ctx, subscribes{}, true)
}

// DialHook implements redis.Hook.
func (bound) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err != nil || ctx.Value(subscribes{}) == nil {
			return c, err
		}
		return &eventConn{Conn: c}, nil
	}
}

// ProcessHook implements redis.Hook.
func (bound) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (bound) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// eventError reports a reply that announces too much data.
type eventError struct{ header string }

func (e *eventError) Error() string {
	return fmt.Sprintf("an event announces more than %d bytes, so no program of the pool published it: it begins with %.24q", maxEvent, e.header)
}

// eventConn is a subscription's connection. After the first reply that announces more than maxEvent bytes or items, all
// reads fail, before the client library sees the reply's header: the library allocates what a header announces.
type eventConn struct {
	net.Conn
	line []byte // the header received so far
	skip int    // bytes of a string still to come
	err  error  // of every further read
}

// Read implements net.Conn.
func (c *eventConn) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	if c.err = c.scan(p[:n]); c.err != nil {
		return 0, c.err
	}
	return n, err
}

// scan parses the stream, which consists of header lines; some announce a string that follows.
func (c *eventConn) scan(b []byte) error {
	for len(b) > 0 {
		n := min(c.skip, len(b))
		c.skip, b = c.skip-n, b[n:]
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		c.line, b = append(c.line, line...), rest
		switch {
		case len(c.line) > maxEvent:
			return &eventError{string(c.line)}
		case whole:
			if err := c.announced(); err != nil {
				return err
			}
			c.line = c.line[:0]
		}
	}
	return nil
}

// announced parses a header for how many bytes follow.
func (c *eventConn) announced() error {
	if len(c.line) == 0 || bytes.IndexByte([]byte("$=!*~>%|"), c.line[0]) < 0 {
		return nil
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(c.line[1:])))
	if err != nil || n > maxEvent {
		return &eventError{string(c.line)}
	}
	if bytes.IndexByte([]byte("$=!"), c.line[0]) >= 0 && n >= 0 {
		c.skip = n + len("\r\n")
	}
	return nil
}
