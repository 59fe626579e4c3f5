package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

type phase uint8

const (
	phasePending phase = iota // the request was sent, the head has not arrived
	phaseBody                 // body bytes follow
	phaseEnded                // the body ended properly
	phaseFailed               // err holds the reason
	phaseClosed
)

type framing uint8

const (
	frameLength framing = iota
	frameChunked
	frameClose
)

const maxInterim = 16 // 1xx heads before the final one

// Response is one response of an upstream, or the wait for it. It belongs to one goroutine at a time; only
// Canceler.Cancel may come from others. It must be closed. It is not reused, so closing it twice is safe.
//
// As the body stream of a fasthttp response (SendTo, or SetBodyStream with Size), it is written by the goroutine of the
// client's connection, without a pipe, and closed by fasthttp.
type Response struct {
	// OnEnd, if set, is called once by Close with the outcome: nil if the body was read to its proper end, otherwise an
	// error. The error matches ErrClientGone if writing to the client failed.
	OnEnd func(error)
	// Tap, if set, gets the body's bytes when they have come.
	Tap func([]byte)
	// Hook, if set after Start, sees the response first.
	Hook ResponseHook

	c        *conn // nil for a response of no upstream
	client   *Client
	canceler *Canceler

	head      head
	headStore [512]byte // holds the fields of head
	added     []Field   // header fields of Set

	phase      phase
	framing    framing
	isHead     bool   // the request was HEAD
	upgrade    bool   // the request asked for another protocol
	events     bool   // Request.Events
	reuse      bool   // the connection may serve another request
	sentBytes  bool   // at least one byte of the request may have reached the upstream
	interim    int    // 1xx heads so far
	scanned    int    // head bytes already searched for its end
	left       int64  // bytes left of a body with a Content-Length
	tail       []byte // the last bytes of an event stream
	chunks     chunkDecoder
	rest       []byte // decoded bytes not yet returned
	err        error  // in phaseFailed
	reported   error  // err as the reader gets it
	hookCalled bool   // Hook.Head has returned
	clientErr  error  // error of writing to the client

	headDue   time.Time     // when the head must have arrived
	first     time.Duration // limit for the head, and then for the first bytes of the body; 0 once these have arrived
	silence   time.Duration
	silentDue time.Time // when the next body bytes must have arrived
	probe     bool      // Client.BytesRead does not count this response
}

var _ fasthttp.BodyWriterTo = (*Response)(nil)

// countRead counts bytes from the upstream.
func (r *Response) countRead() {
	if !r.probe {
		r.client.bytesRead.Add(1)
	}
}

// requestWritten records that the request was sent completely, and sets the deadline for the head.
func (r *Response) requestWritten() {
	r.sentBytes = true
	if r.first > 0 {
		r.headDue = time.Now().Add(r.first)
	}
}

// requestWriteFailed handles a request that could not be sent completely. It returns nil if the upstream refused it
// early and its response has arrived.
func (r *Response) requestWriteFailed(n int64, cause error) error {
	r.reuse = false
	r.sentBytes = n > 0
	if n == 0 {
		return r.fail(ErrUnreachable, cause)
	}
	// An upstream that closes after refusing leaves its response in the receive buffer.
	const look = 50 * time.Millisecond
	if r.Await(time.Now().Add(look)) == nil && r.Status() >= 400 {
		return nil
	}
	if ne, ok := errors.AsType[net.Error](cause); ok && ne.Timeout() {
		return r.fail(ErrTimeout, cause)
	}
	return r.fail(ErrBroken, cause)
}

// Await waits for the head of the response until the given time; with the zero time only Request.FirstByte bounds the
// wait. It returns ErrPending if the given time came first, and may then be called again. Any other error is final.
func (r *Response) Await(until time.Time) error {
	err := r.await(until)
	if err != ErrPending && r.Hook != nil && !r.hookCalled && r.phase != phaseClosed {
		err = r.Hook.Head(r, err)
		r.hookCalled = true
	}
	return err
}

func (r *Response) await(until time.Time) error {
	for r.phase == phasePending {
		if err := r.takeHead(); err != nil {
			return r.fail(ErrInvalidResponse, err)
		}
		if r.phase != phasePending {
			break
		}
		due := earlier(until, r.headDue)
		switch err := r.c.fill(due); {
		case err == nil:
			r.countRead()
		case err == errDeadline && due.Equal(r.headDue):
			return r.fail(ErrTimeout, nil)
		case err == errDeadline:
			return ErrPending
		case err == errFull:
			return r.fail(ErrInvalidResponse, errHead)
		default:
			return r.fail(ErrBroken, err)
		}
	}
	if r.phase == phaseClosed {
		return net.ErrClosed
	}
	return r.reported
}

// takeHead takes a complete head from the unread bytes, if there is one, and skips interim heads.
func (r *Response) takeHead() error {
	for {
		b := r.c.unread()
		const proto = "HTTP/1."
		if n := min(len(b), len(proto)); string(b[:n]) != proto[:n] {
			return errHead
		}
		n := headEnd(b, r.scanned)
		if n == 0 {
			r.scanned = len(b)
			return nil
		}
		unfold(b[:n])
		h, err := parseHead(b[:n])
		if err != nil {
			return err
		}
		r.c.lo += n
		r.scanned = 0
		switch {
		case h.status >= 200:
			h.fields = append(r.headStore[:0], h.fields...)
			r.head = h
			if r.events && h.status == fasthttp.StatusOK && len(r.ContentType()) == 0 {
				r.Set(fasthttp.HeaderContentType, "text/event-stream")
			}
			r.setFraming()
			return nil
		case h.status == fasthttp.StatusSwitchingProtocols && r.upgrade:
			h.fields = append(r.headStore[:0], h.fields...)
			r.head = h
			r.phase, r.reuse = phaseEnded, false
			return nil
		case h.status == fasthttp.StatusSwitchingProtocols, r.interim == maxInterim:
			return errHead
		}
		r.interim++
	}
}

// setFraming decides where the body ends.
func (r *Response) setFraming() {
	r.reuse = r.reuse && !r.head.closes
	r.phase = phaseBody
	r.tail = r.c.tail[:0]
	switch h := &r.head; {
	case r.isHead, h.status == fasthttp.StatusNoContent, h.status == fasthttp.StatusNotModified, h.length == 0:
		r.phase = phaseEnded
	case h.length > 0:
		r.framing, r.left = frameLength, h.length
	case h.chunked:
		r.framing = frameChunked
	default:
		r.framing, r.reuse = frameClose, false
	}
}

// fail ends the exchange with an error. If the exchange was canceled, that is the error, whatever closing the
// connection led to.
func (r *Response) fail(kind, cause error) error {
	if c := r.canceler.Cause(); c != nil {
		kind, cause = ErrCanceled, c
	}
	r.phase = phaseFailed
	r.err = &Error{Kind: kind, Cause: cause, Sent: r.sentBytes}
	if r.reported = r.err; r.hookCalled {
		r.reported = r.Hook.OnError(r, r.err)
	}
	return r.reported
}

// Status returns the status code, or 0 before the response.
func (r *Response) Status() int { return r.head.status }

// ContentType returns the value of Content-Type, or nil without one. It is valid until Close.
func (r *Response) ContentType() []byte { return r.Header(fasthttp.HeaderContentType) }

// IsEvents reports whether the response is a stream of events.
func (r *Response) IsEvents() bool {
	const stream = "text/event-stream"
	contentType := r.ContentType()
	return len(contentType) >= len(stream) && bytes.EqualFold(contentType[:len(stream)], []byte(stream))
}

// Header returns the first value of a header field, or nil without one. The value is valid until Close.
func (r *Response) Header(name string) []byte {
	for i := range r.added {
		if equalFold(r.added[i].Name, name) {
			return r.added[i].Value
		}
	}
	for rest := r.head.fields; len(rest) > 0; {
		var line []byte
		if line, rest = cutLine(rest); len(line) > len(name) && equalFold(line[:len(name)], name) {
			if value, ok := bytes.CutPrefix(bytes.TrimLeft(line[len(name):], " \t"), []byte(":")); ok {
				return bytes.TrimSpace(value)
			}
		}
	}
	return nil
}

// Size returns the length of the body in bytes, or -1 if it is not known in advance. For HEAD it is the announced
// length.
func (r *Response) Size() int {
	switch {
	case r.head.length >= 0:
		return int(r.head.length)
	case r.phase == phaseEnded:
		return len(r.rest)
	}
	return -1
}

// SendTo makes the response the response of ctx: status, content type and body. The caller copies other fields.
// fasthttp closes the response once the body was written or the write failed. If the first bytes of a body stream have
// not arrived yet, the head is sent immediately.
func (r *Response) SendTo(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(r.Status())
	if ct := r.ContentType(); len(ct) > 0 {
		ctx.Response.Header.SetContentTypeBytes(ct)
	}
	size := r.Size()
	ctx.Response.SetBodyStream(r, size)
	ctx.Response.ImmediateHeaderFlush = size < 0 && r.Buffered() == 0
}

// Next returns all body bytes available, and waits until the given time if there are none; the zero time never comes.
// The bytes are valid until the following call. The error is io.EOF at the proper end, and ErrPending if the given time
// came first.
func (r *Response) Next(until time.Time) ([]byte, error) {
	for {
		if b := r.rest; len(b) > 0 {
			r.rest = nil
			return b, nil
		}
		switch r.phase {
		case phaseEnded:
			if !isTruncatedChat(r.tail) {
				return nil, io.EOF
			}
			return nil, r.fail(ErrBroken, io.ErrUnexpectedEOF)
		case phaseFailed:
			return nil, r.reported
		case phaseClosed:
			return nil, net.ErrClosed
		case phasePending:
			if err := r.Await(until); err == ErrPending {
				return nil, err
			}
			continue
		}
		if b := r.c.unread(); len(b) > 0 {
			r.rest = r.decode(b)
			continue
		}
		limit := r.silence // for the next bytes
		if r.first > 0 {
			limit = r.first
		}
		if limit > 0 && r.silentDue.IsZero() {
			r.silentDue = time.Now().Add(limit)
		}
		due := earlier(until, r.silentDue)
		switch err := r.c.fill(due); {
		case err == nil:
			r.silentDue = time.Time{}
			r.countRead()
		case err == errDeadline && due.Equal(r.silentDue):
			_ = r.fail(ErrTimeout, nil)
		case err == errDeadline:
			return nil, ErrPending
		case err == io.EOF && r.framing == frameClose:
			r.phase = phaseEnded
		case err == io.EOF:
			_ = r.fail(ErrBroken, io.ErrUnexpectedEOF)
		default:
			_ = r.fail(ErrBroken, err)
		}
	}
}

// Buffered returns a number of body bytes that can be read without waiting, 0 if there are none.
func (r *Response) Buffered() int {
	if len(r.rest) == 0 && r.phase == phaseBody {
		if b := r.c.unread(); len(b) > 0 {
			r.rest = r.decode(b) // empty if b is only framing
		}
	}
	return len(r.rest)
}

// decode removes the framing from unread bytes b and notices the end of the body.
func (r *Response) decode(b []byte) []byte {
	used := len(b)
	switch r.framing {
	case frameLength:
		used = int(min(int64(used), r.left))
		b = b[:used]
		if r.left -= int64(used); r.left == 0 {
			r.phase = phaseEnded
		}
	case frameChunked:
		var err error
		if b, used, err = r.chunks.decode(b); err != nil {
			_ = r.fail(ErrInvalidResponse, err)
		} else if r.chunks.state == chunkDone {
			r.phase = phaseEnded
		}
	}
	r.c.lo += used
	if len(b) > 0 {
		r.first = 0
		if r.Tap != nil {
			r.Tap(b)
		}
	}
	if r.IsEvents() {
		r.tail = AppendTail(r.tail, b)
		r.c.tail = r.tail
	}
	return b
}

// Read returns the body bytes that are available and waits only if there are none. Its error is io.EOF only at the
// body's proper end.
func (r *Response) Read(p []byte) (int, error) {
	b, err := r.Next(time.Time{})
	if err != nil {
		return 0, err
	}
	n := copy(p, b)
	r.rest = b[n:]
	return n, nil
}

// SupportsBodyWriteTo makes fasthttp use WriteTo instead of Read.
func (r *Response) SupportsBodyWriteTo() bool { return true }

// WriteTo writes the body to w, straight from the buffer that was read from the socket. Chunks that arrived together
// are written together; none waits for another.
func (r *Response) WriteTo(w io.Writer) (int64, error) {
	f, _ := w.(interface{ Flush() error })
	var total int64
	for {
		if f != nil && total > 0 && r.Buffered() == 0 {
			// Flush before waiting, so that w holds nothing back from the client.
			if err := r.RecordClientError(f.Flush()); err != nil {
				return total, err
			}
		}
		b, err := r.Next(time.Time{})
		if err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		n, err := w.Write(b)
		total += int64(n)
		if err := r.RecordClientError(err); err != nil {
			return total, err
		}
	}
}

// RecordClientError records an error of writing the body to the client and returns it as one that matches
// ErrClientGone. It does nothing for nil.
func (r *Response) RecordClientError(err error) error {
	if err != nil {
		r.clientErr = fmt.Errorf("%w: %w", ErrClientGone, err)
		err = r.clientErr
	}
	return err
}

// AppendBody appends the rest of the body to dst. It returns ErrTooLarge for a body longer than limit bytes.
func (r *Response) AppendBody(dst []byte, limit int) ([]byte, error) {
	for total := 0; ; {
		b, err := r.Next(time.Time{})
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
// Otherwise it closes the connection, so that the upstream stops sending.
func (r *Response) Close() error {
	if r.phase == phaseClosed {
		return nil
	}
	outcome := r.Outcome()
	ended := r.phase == phaseEnded
	r.phase, r.rest = phaseClosed, nil
	if c := r.c; c != nil {
		keep := r.reuse && ended && c.lo == c.hi
		r.c = nil
		c.drop()
		if !r.canceler.unbind() || !keep {
			_ = c.nc.Close()
			c = nil
		}
		r.client.release(c)
	}
	if r.Hook != nil {
		r.Hook.End(outcome)
	}
	if r.OnEnd != nil {
		r.OnEnd(outcome)
	}
	return nil
}

// Outcome returns what OnEnd would get from Close now.
func (r *Response) Outcome() error {
	switch {
	case r.clientErr != nil:
		return r.clientErr
	case r.phase == phaseEnded && len(r.rest) == 0:
		return nil
	case r.phase == phaseFailed:
		return r.err
	}
	cause := r.canceler.Cause()
	if cause == nil {
		cause = net.ErrClosed
	}
	return &Error{Kind: ErrCanceled, Cause: cause, Sent: r.sentBytes}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
