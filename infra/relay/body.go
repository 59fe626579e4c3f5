package relay

import (
	"fmt"
	"io"
	"net"
	"time"
)

// next returns all body bytes available, and waits if there are none. They are valid until the following call. It
// returns io.EOF at the proper end, and errDue if due passed first; the zero time never passes.
func (r *Response) next(due time.Time) ([]byte, error) {
	for {
		if b := r.rest; len(b) > 0 {
			r.rest = nil
			return b, nil
		}
		switch r.phase {
		case phaseEnded:
			return nil, io.EOF
		case phaseFailed:
			return nil, r.reported
		case phaseClosed:
			return nil, net.ErrClosed
		case phasePending:
			if err := r.Await(due); err == ErrPending {
				return nil, errDue
			}
			continue
		}
		if b := r.c.unread(); len(b) > 0 {
			if p := r.decode(b); len(p) > 0 {
				return p, nil
			}
			continue
		}
		if limit := r.bound(); limit > 0 && r.silentDue.IsZero() {
			r.silentDue = time.Now().Add(limit)
		}
		wait := earlier(due, r.silentDue)
		switch err := r.c.fill(wait); {
		case err == nil:
			r.silentDue = time.Time{}
			r.heard()
		case err == errDue && wait.Equal(r.silentDue):
			_ = r.fail(ErrTimeout, nil)
		case err == errDue:
			return nil, errDue
		case err == io.EOF && r.framing == frameClose:
			r.phase = phaseEnded
			r.vet(nil)
		case err == io.EOF:
			_ = r.fail(ErrBroken, io.ErrUnexpectedEOF)
		default:
			_ = r.fail(ErrBroken, err)
		}
	}
}

// decode removes the framing from unread bytes b and notices the end of the body.
func (r *Response) decode(b []byte) []byte {
	data := r.unframe(b)
	if len(data) > 0 {
		r.first = 0
	}
	if !r.vet(data) {
		return nil
	}
	return data
}

// bound returns how long the next bytes of the body may take; 0 means no bound.
func (r *Response) bound() time.Duration {
	if r.first > 0 {
		return r.first
	}
	return r.silence
}

// vet checks the next bytes of a body that must be JSON. Bytes that break the JSON or exceed the limit fail the
// exchange.
func (r *Response) vet(data []byte) bool {
	if !r.isJSON {
		return true
	}
	if r.limit > 0 {
		if r.limit -= int64(len(data)); r.limit <= 0 {
			_ = r.fail(ErrTooLarge, nil)
			return false
		}
	}
	if !r.json.feed(data) || r.phase == phaseEnded && !r.json.whole() {
		_ = r.rejectJSON(&r.json)
		return false
	}
	return true
}

// rejectJSON ends an exchange whose answer contains the text j, which is not JSON or nests too deep.
func (r *Response) rejectJSON(j *jsonText) error {
	if j.state == jsonDeep { // the request asked for it, as for an answer that is too long
		r.rest = nil
		return r.fail(ErrTooLarge, errDepth)
	}
	return r.Reject(errJSON)
}

// HoldJSON requires the body to be one JSON text. It returns ErrBadReply if it is not, and ErrTooLarge if it nests too
// deep or, unless most is 0, has more than most bytes. It first reads limit bytes of the body, and up to one buffer
// more, or all of a shorter body. It so finds faults within them, and a Content-Length above most, before the head is
// passed on. A body whose fault comes later is passed on up to the fault. If its length was not announced, its chunked
// body then ends without a last chunk and the connection closes, so that no client takes it for complete. Other errors
// are those of a read.
func (r *Response) HoldJSON(limit, most int) error {
	r.isJSON = true
	if most > 0 {
		if r.Size() > most {
			return r.fail(ErrTooLarge, nil)
		}
		r.limit = int64(most) + 1
	}
	if r.phase == phaseEnded {
		r.vet(r.rest)
		return r.reported
	}
	if r.Buffered(); r.phase != phaseBody {
		return r.reported // most bodies came with their heads, so nothing is copied
	}
	held := make([]byte, 0, min(limit, max(r.Size(), smallBuffer)))
	for len(held) < limit {
		b, err := r.next(time.Time{})
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		held = append(held, b...)
	}
	r.rest = held
	return nil
}

// unframe removes the framing from b.
func (r *Response) unframe(b []byte) []byte {
	switch r.framing {
	case frameLength:
		if int64(len(b)) > r.left {
			b = b[:r.left]
		}
		r.c.lo += len(b)
		if r.left -= int64(len(b)); r.left == 0 {
			r.phase = phaseEnded
		}
		return b
	case frameChunked:
		data, used, err := r.chunks.decode(b)
		r.c.lo += used
		if err != nil {
			_ = r.fail(ErrBadReply, err)
		} else if r.chunks.state == chunkDone {
			r.phase = phaseEnded
		}
		return data
	}
	r.c.lo += len(b)
	return b
}

// Read returns the body bytes that are available and waits only if there are none. Its error is io.EOF only at the
// body's proper end.
func (r *Response) Read(p []byte) (int, error) {
	b, err := r.next(time.Time{})
	if err != nil {
		return 0, err
	}
	n := copy(p, b)
	r.rest = b[n:]
	return n, nil
}

// SupportsBodyWriteTo tells fasthttp to use WriteTo instead of Read.
func (r *Response) SupportsBodyWriteTo() bool { return true }

// WriteTo writes the body to w, straight from the buffer that was read from the socket. Chunks that arrived together
// are written together; none waits for another.
func (r *Response) WriteTo(w io.Writer) (int64, error) {
	f, _ := w.(flusher)
	var total int64
	for {
		if f != nil && total > 0 && r.Buffered() == 0 {
			// Flush before waiting, so that w holds nothing back from the client.
			if err := f.Flush(); err != nil {
				return total, r.downFailed(err)
			}
		}
		b, err := r.next(time.Time{})
		if err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		n, err := w.Write(b)
		total += int64(n)
		if err != nil {
			return total, r.downFailed(err)
		}
	}
}

type flusher interface{ Flush() error }

// downFailed records that writing to the client failed.
func (r *Response) downFailed(err error) error {
	r.down = fmt.Errorf("%w: %w", ErrGone, err)
	return r.down
}

// AppendBody appends the rest of the body to dst. It returns ErrTooLarge for a body longer than limit bytes.
func (r *Response) AppendBody(dst []byte, limit int) ([]byte, error) {
	for total := 0; ; {
		b, err := r.next(time.Time{})
		if err == io.EOF {
			return dst, nil
		} else if err != nil {
			return dst, err
		}
		if total += len(b); total > limit {
			return dst, r.fail(ErrTooLarge, nil)
		}
		dst = append(dst, b...)
	}
}

// Close ends the exchange. It keeps the connection if the body was read to its proper end and nothing followed it.
// Otherwise it closes the connection, which tells the upstream that nobody is listening any more.
func (r *Response) Close() error {
	if r.phase == phaseClosed {
		return nil
	}
	c, client, call, hop, onEnd := r.c, r.client, r.call, r.Hop, r.OnEnd
	outcome := r.outcome()
	reuse := r.reuse && r.phase == phaseEnded && c.lo == c.hi
	r.phase, r.headed = phaseClosed, false
	r.OnEnd, r.Hop, r.client, r.call, r.rest = nil, nil, nil, nil, nil
	if c != nil {
		c.drop()
		if !call.unbind() {
			reuse = false
		}
		if reuse {
			client.release(c) // from here on r may serve another exchange
		} else {
			_ = c.nc.Close()
			client.release(nil)
		}
	}
	if hop != nil {
		hop.End(outcome)
	}
	if onEnd != nil {
		onEnd(outcome)
	}
	return nil
}

// outcome returns the argument for OnEnd.
func (r *Response) outcome() error {
	switch {
	case r.down != nil:
		return r.down
	case r.phase == phaseEnded && len(r.rest) == 0:
		return nil
	case r.phase == phaseFailed:
		return r.err
	}
	cause := r.call.Cause()
	if cause == nil {
		cause = net.ErrClosed
	}
	return &Error{Kind: ErrCancelled, Cause: cause, Sent: r.wasSent, Got: r.got}
}
