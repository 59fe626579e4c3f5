package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// errIdle: a tunnel carried no byte in either direction for its idle time.
var errIdle = errors.New("tunnel idle")

const (
	tunnelWrite = 30 * time.Second // for a side of a tunnel to accept bytes
	tunnelClose = 2 * time.Second  // for the last bytes of one side after the other has closed
)

// Switched reports whether the upstream accepted the protocol that Request.Upgrade asked for.
func (r *Response) Switched() bool { return r.Status() == fasthttp.StatusSwitchingProtocols }

// Tunnel passes bytes between a client and an upstream that has Switched, in both directions as they come, until a side
// closes. A closed side is not an error. Other errors are errIdle, after idle without a byte in either direction, and
// that of a canceled exchange. The caller must still Close the response, and close client.
func (r *Response) Tunnel(client net.Conn, idle time.Duration) error {
	t := &tunnel{idle: idle}
	t.last.Store(time.Now().UnixNano())
	up := r.c.nc
	if b := r.c.unread(); len(b) > 0 {
		if _, err := client.Write(b); err != nil {
			return nil
		}
	}
	back := make(chan error, 1)
	go func() { back <- t.pass(client, up) }()
	err := errors.Join(t.pass(up, client), <-back) // when one direction ends, its error or deadline ends the other
	if cause := r.canceler.Cause(); cause != nil && !errors.Is(cause, ErrClientGone) {
		return &Error{Kind: ErrCanceled, Cause: cause, Sent: true}
	}
	if errors.Is(err, errIdle) {
		return errIdle
	}
	return nil
}

// tunnel is the state that both directions share.
type tunnel struct {
	idle     time.Duration
	last     atomic.Int64 // when the last byte came, Unix nanoseconds
	finished atomic.Bool  // a side has closed
}

// pass copies from one side to the other until an error, which is nil at the end of the stream.
func (t *tunnel) pass(to, from net.Conn) error {
	buf := getBuffer(true)
	defer putBuffer(buf)
	defer t.closing(to, from)
	for {
		if !t.finished.Load() {
			if err := from.SetReadDeadline(time.Unix(0, t.last.Load()).Add(t.idle)); err != nil {
				return err
			}
			if t.finished.Load() { // closing has run meanwhile, and the call above may have overwritten its deadline
				_ = from.SetReadDeadline(time.Now().Add(tunnelClose))
			}
		}
		n, err := from.Read(*buf)
		if n > 0 {
			t.last.Store(time.Now().UnixNano())
			if err := to.SetWriteDeadline(time.Now().Add(tunnelWrite)); err != nil {
				return err
			}
			if _, err := to.Write((*buf)[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded) && !t.finished.Load():
			if time.Since(time.Unix(0, t.last.Load())) >= t.idle {
				return errIdle
			}
		default:
			return err
		}
	}
}

// closing lets the other direction send its last bytes.
func (t *tunnel) closing(to, from net.Conn) {
	t.finished.Store(true)
	end := time.Now().Add(tunnelClose)
	_ = to.SetReadDeadline(end)
	_ = from.SetReadDeadline(end)
}
