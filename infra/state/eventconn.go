package state

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// maxEvent is the most bytes that an event may have. The pool's own have a few hundred.
const maxEvent = 1 << 20

// bound is a hook of clients of one node. It bounds the connections that subscriptions make.
type bound struct{}

var _ redis.Hook = bound{}

type subscribes struct{} // key of the value that marks a subscription's context

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

// eventError reports a reply that announces too much.
type eventError struct{ header string }

func (e *eventError) Error() string {
	return fmt.Sprintf("an event announces more than %d bytes, so no program of the pool published it: it begins with %.24q", maxEvent, e.header)
}

// eventConn is a connection of a subscription. Reads fail from the first reply on that announces more than maxEvent bytes or
// items, before the client library sees its header: the library allocates what a header announces.
type eventConn struct {
	net.Conn
	line []byte // of a header, as far as it came
	skip int    // bytes of a string that are still to come
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

// scan follows the stream, which consists of header lines; some announce a string that follows.
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

// announced learns from a header how many bytes follow.
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
