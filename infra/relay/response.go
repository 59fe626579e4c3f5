package relay

import (
	"bytes"
	"errors"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

type phase uint8

const (
	phaseClosed  phase = iota // given back; the connection may serve another exchange
	phasePending              // the request was sent, the head has not come
	phaseBody                 // body bytes follow
	phaseEnded                // the body came to its proper end
	phaseFailed               // err says how
)

type framing uint8

const (
	frameLength framing = iota
	frameChunked
	frameClose
)

const maxInterim = 16 // 1xx heads before the real one

// Response is one answer of an upstream, or the wait for it. It belongs to one goroutine at a time (only Call.Cancel
// comes from others), must be closed exactly once, and is dead after that: its memory serves the next exchange.
//
// As the body stream of a fasthttp response (SendTo, or SetBodyStream with Size) it is written by the goroutine of the
// client's connection, without a pipe, and closed by fasthttp.
type Response struct {
	// OnEnd, if set, is called once by Close with the outcome: nil when the body was read to its proper end, else an
	// error. It matches ErrGone when the client could not be written to.
	OnEnd func(error)

	c      *conn
	client *Client
	call   *Call
	header fasthttp.ResponseHeader

	phase   phase
	framing framing
	isHead  bool // the request was HEAD
	reuse   bool // the connection may serve another request
	wasSent bool
	got     bool
	interim int
	scanned int   // bytes searched for the end of the head
	left    int64 // of a body with a length
	chunks  chunkDecoder
	isJSON  bool     // the body is checked
	limit   int64    // where it is: one more than the bytes of it that may still come; 0 is no bound
	json    jsonText // as far as it was decoded
	rest    []byte   // decoded bytes that were not given out
	err     error    // in phaseFailed
	down    error    // from writing to the client

	headDue   time.Time     // the head must have come by then
	first     time.Duration // for the first bytes of the body; 0 when they came
	silence   time.Duration
	silentDue time.Time // the next body bytes must have come by then
	probe     bool      // what comes is not counted by Client.Heard
}

var _ fasthttp.BodyWriterTo = (*Response)(nil)

// heard counts bytes that came from the upstream.
func (r *Response) heard() {
	if !r.probe {
		r.client.heard.Add(1)
	}
}

// begin takes the response into use for one exchange.
func (r *Response) begin(client *Client, call *Call, req *Request) {
	r.OnEnd = nil
	r.client, r.call = client, call
	r.header.Reset()
	r.header.SetNoDefaultContentType(true)
	r.phase, r.framing = phasePending, frameLength
	r.isHead, r.reuse = req.Method == "HEAD", !client.cfg.Single
	r.wasSent, r.got = false, false
	r.interim, r.scanned, r.left = 0, 0, 0
	r.chunks = chunkDecoder{}
	r.isJSON, r.limit, r.json = false, 0, jsonText{}
	r.rest, r.err, r.down = nil, nil, nil
	r.headDue, r.silentDue = time.Time{}, time.Time{}
	r.first, r.silence, r.probe = req.FirstByte, req.Silence, req.Probe
	r.c.big = false
}

// sent starts the clock of the first byte.
func (r *Response) sent(firstByte time.Duration) {
	r.wasSent = true
	if firstByte > 0 {
		r.headDue = time.Now().Add(firstByte)
	}
}

// writeFailed decides what a request that could not be written in whole means. Nil: the upstream refused it early, and
// its answer is there.
func (r *Response) writeFailed(n int64, cause error) error {
	r.reuse = false
	r.wasSent = n > 0
	if n == 0 {
		return r.fail(ErrUnreachable, cause)
	}
	// An upstream that closes after a refusal leaves its answer in the receive buffer.
	const look = 50 * time.Millisecond
	if r.Await(time.Now().Add(look)) == nil && r.Status() >= 400 {
		return nil
	}
	if ne := net.Error(nil); errors.As(cause, &ne) && ne.Timeout() {
		return r.fail(ErrTimeout, cause)
	}
	return r.fail(ErrBroken, cause)
}

// Await waits for the head of the answer until the given time, the zero time being no limit but Request.FirstByte.
// It returns ErrPending when that time came first; then it may be called again. Any other error is final.
func (r *Response) Await(until time.Time) error {
	for r.phase == phasePending {
		if err := r.takeHead(); err != nil {
			return r.fail(ErrBadReply, err)
		}
		if r.phase != phasePending {
			break
		}
		due := earlier(until, r.headDue)
		switch err := r.c.fill(due); err {
		case nil:
			r.got = true
			r.heard()
		case errDue:
			if due.Equal(r.headDue) {
				return r.fail(ErrTimeout, nil)
			}
			return ErrPending
		case errFull:
			return r.fail(ErrBadReply, errHead)
		default:
			return r.fail(ErrBroken, err)
		}
	}
	if r.phase == phaseClosed {
		return net.ErrClosed
	}
	return r.err
}

// takeHead takes a head off the unread bytes if a whole one is there, and skips interim ones.
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
		if err := parseHead(&r.header, b[:n]); err != nil {
			return err
		}
		r.c.lo += n
		r.scanned = 0
		if status := r.header.StatusCode(); status >= 200 {
			r.frame(status, saysClose(b[:n]))
			return nil
		} else if r.interim++; status == fasthttp.StatusSwitchingProtocols || r.interim > maxInterim {
			return errHead
		}
	}
}

// frame decides where the body ends. closes: the head says that the connection does.
func (r *Response) frame(status int, closes bool) {
	if closes || r.header.ConnectionClose() {
		r.reuse = false
	}
	r.phase = phaseBody
	length := r.header.ContentLength()
	switch {
	case r.isHead, status == fasthttp.StatusNoContent, status == fasthttp.StatusNotModified, length == 0:
		r.phase = phaseEnded
	case length > 0:
		r.framing, r.left = frameLength, int64(length)
	case length == -1:
		r.framing = frameChunked
	default:
		r.framing, r.reuse = frameClose, false
	}
}

// fail ends the exchange with an error; a cancelled call says so whatever it was that its closed connection led to.
func (r *Response) fail(kind, cause error) error {
	if c := r.call.Cause(); c != nil {
		kind, cause = ErrCancelled, c
	}
	r.phase = phaseFailed
	r.err = &Error{Kind: kind, Cause: cause, Sent: r.wasSent, Got: r.got}
	return r.err
}

// Reject ends an exchange whose answer is not what it should be, as one with a bad reply: it returns an ErrBadReply with
// the cause, and so does whoever reads on. The connection is not used again.
func (r *Response) Reject(cause error) error {
	r.rest = nil
	return r.fail(ErrBadReply, cause)
}

// Status is the status code, 0 while there is no answer.
func (r *Response) Status() int {
	if r.phase == phasePending {
		return 0
	}
	return r.header.StatusCode()
}

// ContentType is the value of Content-Type, nil without one. It is valid until Close.
func (r *Response) ContentType() []byte { return r.header.ContentType() }

// IsEvents reports whether the answer is a stream of events.
func (r *Response) IsEvents() bool {
	return bytes.HasPrefix(r.ContentType(), []byte("text/event-stream"))
}

// Header is the first value of a header field, nil without one, found without allocating where name is spelled as in
// "Retry-After". It is valid until Close.
func (r *Response) Header(name string) []byte { return r.header.Peek(name) }

// Size is the length of the body in bytes, or -1 where only its end will tell. For HEAD it is the length announced.
func (r *Response) Size() int {
	if n := r.header.ContentLength(); n >= 0 {
		return n
	}
	if r.phase == phaseEnded {
		return len(r.rest)
	}
	return -1
}

// Buffered is the number of body bytes, at least, that can be read without waiting; 0 only where none can.
func (r *Response) Buffered() int {
	if len(r.rest) == 0 && r.phase == phaseBody {
		if b := r.c.unread(); len(b) > 0 {
			r.rest = r.decode(b) // framing without data is nothing that a reader could have
		}
	}
	return len(r.rest)
}

// SendTo makes the answer that of ctx: status, content type and body. Other fields are the caller's to copy. fasthttp
// closes the response when the body was written, or could not be. The head goes out at once where the body is a stream
// whose first bytes are not there yet.
func (r *Response) SendTo(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(r.Status())
	if ct := r.ContentType(); len(ct) > 0 {
		ctx.Response.Header.SetContentTypeBytes(ct)
	}
	size := r.Size()
	ctx.Response.SetBodyStream(r, size)
	ctx.Response.ImmediateHeaderFlush = size < 0 && r.Buffered() == 0
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
