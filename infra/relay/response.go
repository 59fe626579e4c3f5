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
	phasePending              // the request was sent, the head has not arrived
	phaseBody                 // body bytes follow
	phaseEnded                // the body ended properly
	phaseFailed               // err holds the reason
)

type framing uint8

const (
	frameLength framing = iota
	frameChunked
	frameClose
)

const maxInterim = 16 // 1xx heads before the final one

// Response is one answer of an upstream, or the wait for it. It belongs to one goroutine at a time; only Call.Cancel
// may come from others. It must be closed exactly once and not be used after that, as its memory serves the next
// exchange.
//
// As the body stream of a fasthttp response (SendTo, or SetBodyStream with Size), it is written by the goroutine of the
// client's connection, without a pipe, and closed by fasthttp.
type Response struct {
	// OnEnd, if set, is called once by Close with the outcome: nil if the body was read to its proper end, otherwise an
	// error. The error matches ErrGone if writing to the client failed.
	OnEnd func(error)
	// Hop, if set after Start, sees the answer first.
	Hop Hop

	c      *conn // nil for an answer of no upstream
	client *Client
	call   *Call
	header fasthttp.ResponseHeader

	phase    phase
	framing  framing
	isHead   bool // the request was HEAD
	upgrade  bool // the request asked for another protocol
	reuse    bool // the connection may serve another request
	wasSent  bool
	got      bool
	interim  int
	scanned  int   // head bytes already searched for its end
	left     int64 // bytes left of a body with a Content-Length
	chunks   chunkDecoder
	isJSON   bool     // check that the body is JSON
	limit    int64    // if it is: body bytes that may still arrive, plus one; 0 means no bound
	json     jsonText // check of the body decoded so far
	rest     []byte   // decoded bytes not yet returned
	err      error    // in phaseFailed
	reported error    // the same as the reader gets it
	headed   bool     // Hop.Head has returned
	bare     bool     // it has no fields but Content-Type

	jsonEvents bool  // see RequireJSONEvents
	down       error // error of writing to the client

	headDue   time.Time     // when the head must have arrived
	first     time.Duration // limit for the first bytes of the body; 0 once they arrived
	silence   time.Duration
	silentDue time.Time // when the next body bytes must have arrived
	probe     bool      // Client.Heard does not count this answer
}

var _ fasthttp.BodyWriterTo = (*Response)(nil)

// heard counts bytes from the upstream.
func (r *Response) heard() {
	if !r.probe {
		r.client.heard.Add(1)
	}
}

// begin prepares the response for one exchange.
func (r *Response) begin(client *Client, call *Call, req *Request) {
	r.OnEnd, r.Hop = nil, nil
	r.client, r.call = client, call
	r.header.Reset()
	r.header.SetNoDefaultContentType(true)
	r.phase, r.framing = phasePending, frameLength
	r.isHead, r.upgrade, r.reuse = req.Method == "HEAD", req.Upgrade != "", !client.cfg.Single
	r.wasSent, r.got = false, false
	r.interim, r.scanned, r.left = 0, 0, 0
	r.chunks = chunkDecoder{}
	r.isJSON, r.limit, r.json = false, 0, jsonText{}
	r.rest, r.err, r.reported, r.down = nil, nil, nil, nil
	r.headed, r.bare, r.jsonEvents = false, false, false
	r.headDue, r.silentDue = time.Time{}, time.Time{}
	r.first, r.silence, r.probe = req.FirstByte, req.Silence, req.Probe
	r.c.big = false
}

// sent starts the timer for the first byte.
func (r *Response) sent(firstByte time.Duration) {
	r.wasSent = true
	if firstByte > 0 {
		r.headDue = time.Now().Add(firstByte)
	}
}

// writeFailed handles a request that could not be sent completely. It returns nil if the upstream refused it early and
// its answer has arrived.
func (r *Response) writeFailed(n int64, cause error) error {
	r.reuse = false
	r.wasSent = n > 0
	if n == 0 {
		return r.fail(ErrUnreachable, cause)
	}
	// An upstream that closes after refusing leaves its answer in the receive buffer.
	const look = 50 * time.Millisecond
	if r.Await(time.Now().Add(look)) == nil && r.Status() >= 400 {
		return nil
	}
	if ne := net.Error(nil); errors.As(cause, &ne) && ne.Timeout() {
		return r.fail(ErrTimeout, cause)
	}
	return r.fail(ErrBroken, cause)
}

// Await waits for the head of the answer until the given time; with the zero time only Request.FirstByte bounds the
// wait. It returns ErrPending if the given time came first, and may then be called again. Any other error is final.
func (r *Response) Await(until time.Time) error {
	if r.Hop == nil || r.headed || r.phase == phaseClosed {
		return r.await(until)
	}
	err := r.await(until)
	if err != ErrPending {
		err = r.Hop.Head(r, err)
		r.headed = true
	}
	return err
}

func (r *Response) await(until time.Time) error {
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
		if err := parseHead(&r.header, b[:n]); err != nil {
			return err
		}
		r.c.lo += n
		r.scanned = 0
		if status := r.header.StatusCode(); status >= 200 {
			r.frame(status, wantsClose(b[:n]))
			return nil
		} else if status == fasthttp.StatusSwitchingProtocols && r.upgrade {
			r.phase, r.reuse = phaseEnded, false
			return nil
		} else if r.interim++; status == fasthttp.StatusSwitchingProtocols || r.interim > maxInterim {
			return errHead
		}
	}
}

// frame decides where the body ends. closes says that the head announces the end of the connection.
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

// fail ends the exchange with an error. If the call was cancelled, that is the error, whatever closing the connection
// led to.
func (r *Response) fail(kind, cause error) error {
	if c := r.call.Cause(); c != nil {
		kind, cause = ErrCancelled, c
	}
	r.phase = phaseFailed
	r.err = &Error{Kind: kind, Cause: cause, Sent: r.wasSent, Got: r.got}
	if r.reported = r.err; r.headed {
		r.reported = r.Hop.Broke(r, r.err)
	}
	return r.reported
}

// Reject ends an exchange whose answer is wrong. It returns an ErrBadReply with the cause, and so does every further
// read. The connection is not used again.
func (r *Response) Reject(cause error) error {
	r.rest = nil
	return r.fail(ErrBadReply, cause)
}

// Status returns the status code, or 0 before the answer.
func (r *Response) Status() int {
	if r.phase == phasePending {
		return 0
	}
	return r.header.StatusCode()
}

// ContentType returns the value of Content-Type, or nil without one. It is valid until Close.
func (r *Response) ContentType() []byte { return r.header.ContentType() }

// IsEvents reports whether the answer is a stream of events.
func (r *Response) IsEvents() bool {
	return bytes.HasPrefix(r.ContentType(), []byte("text/event-stream"))
}

// Header returns the first value of a header field, or nil without one. It does not allocate if name is spelled like
// "Retry-After". The value is valid until Close.
func (r *Response) Header(name string) []byte {
	if r.bare && name != fasthttp.HeaderContentType {
		return nil
	}
	return r.header.Peek(name)
}

// Size returns the length of the body in bytes, or -1 if it is not known in advance. For HEAD it is the announced
// length.
func (r *Response) Size() int {
	if n := r.header.ContentLength(); n >= 0 {
		return n
	}
	if r.phase == phaseEnded {
		return len(r.rest)
	}
	return -1
}

// Buffered returns at least how many body bytes can be read without waiting; 0 means none.
func (r *Response) Buffered() int {
	if len(r.rest) == 0 && r.phase == phaseBody {
		if b := r.c.unread(); len(b) > 0 {
			r.rest = r.decode(b) // framing without data is nothing to read
		}
	}
	return len(r.rest)
}

// SendTo makes the response the answer of ctx: status, content type and body. The caller copies other fields. fasthttp
// closes the response once the body was written or the write failed. If the first bytes of a body stream have not
// arrived yet, the head is sent at once.
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
