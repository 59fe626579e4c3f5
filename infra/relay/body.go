package relay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// Errors of BodyReader.Read. The connection closes after the response.
var (
	ErrBodyTooLarge = fasthttp.ErrBodyTooLarge
	ErrBodySlow     = errors.New("the body arrives too slowly")
	ErrBodyBroken   = errors.New("the body ended early, or its chunks are malformed")
	ErrBuffersFull  = errors.New("too many request bytes are buffered")
)

// BodyReaderConfig holds the limits of a BodyReader.
type BodyReaderConfig struct {
	// MaxBody bounds every body, in bytes; 0 means no bound.
	MaxBody int
	// MaxBuffered bounds the buffers of all bodies together, in bytes; 0 means no bound.
	MaxBuffered int64
	// ReadTimeout bounds the arrival of a head, each pause in a body, and how far a body may fall behind MinRate;
	// default 30 s.
	ReadTimeout time.Duration
	// MinRate is the minimum rate of a body, in bytes a second; default 64 KiB/s. A body of n bytes may take ReadTimeout
	// plus n/MinRate seconds.
	MinRate int
}

// BodyReader reads request bodies for a fasthttp server. It reads nothing before the handler asks for it, and its memory
// follows the bytes that arrived, not the Content-Length. A handler calls Read after accepting the head, and in any
// case Finish before it returns. A BodyReader is safe for concurrent use.
type BodyReader struct {
	cfg      BodyReaderConfig
	buffered atomic.Int64
}

// NewBodyReader creates a BodyReader.
func NewBodyReader(cfg BodyReaderConfig) *BodyReader {
	cfg.ReadTimeout = cmp.Or(max(cfg.ReadTimeout, 0), 30*time.Second)
	cfg.MinRate = cmp.Or(max(cfg.MinRate, 0), 64<<10)
	return &BodyReader{cfg: cfg}
}

// Configure sets the options of s that a BodyReader requires: s passes requests on with their bodies unread, forms
// included. MaxRequestBodySize only bounds what fasthttp reads ahead; it may not be 0.
func (r *BodyReader) Configure(s *fasthttp.Server) {
	s.StreamRequestBody, s.DisablePreParseMultipartForm = true, true
	s.MaxRequestBodySize = 1
	s.ReadTimeout = r.cfg.ReadTimeout
}

// Buffered returns the bytes of all buffers in use.
func (r *BodyReader) Buffered() int64 { return r.buffered.Load() }

// Body is a request's body in a buffer of a BodyReader. The zero Body is empty.
type Body struct {
	reader *BodyReader
	ctx    *fasthttp.RequestCtx
	buf    *[]byte

	reserved int64 // bytes besides the buffer
}

// Drop releases the buffer and the bytes that Reserve counted. The request's body is then empty, and slices of it are
// invalid. Drop can be called twice.
func (b *Body) Drop() {
	if b.buf == nil {
		return
	}
	b.ctx.Request.ResetBody()
	b.reader.buffered.Add(-int64(len(*b.buf)) - b.reserved)
	putBody(b.buf)
	b.buf, b.reserved = nil, 0
}

// Reserve counts n more bytes of this request against MaxBuffered, until Drop. The Body must not be empty. The error is
// ErrBuffersFull.
func (b *Body) Reserve(n int) error {
	if err := b.reader.Reserve(n); err != nil {
		return err
	}
	b.reserved += int64(n)
	return nil
}

// Reserve counts n bytes against MaxBuffered, such as those of a response, until Release. The error is ErrBuffersFull.
func (r *BodyReader) Reserve(n int) error {
	if buffered := r.buffered.Add(int64(n)); r.cfg.MaxBuffered > 0 && buffered > r.cfg.MaxBuffered {
		r.Release(n)
		return ErrBuffersFull
	}
	return nil
}

// Release undoes Reserve for n bytes.
func (r *BodyReader) Release(n int) { r.buffered.Add(-int64(n)) }

// CheckSize returns nil if a body of n bytes is within the limits now. It returns ErrBodyTooLarge if n exceeds MaxBody
// or limit (0 for none), and ErrBuffersFull if the buffers are full.
func (r *BodyReader) CheckSize(n, limit int) error {
	if limit = r.limit(limit); n > limit {
		return ErrBodyTooLarge
	}
	if r.cfg.MaxBuffered > 0 && n > 0 && r.buffered.Load()+int64(n) > r.cfg.MaxBuffered {
		return ErrBuffersFull
	}
	return nil
}

// limit returns the smaller of limit and MaxBody; either may be 0 for no bound.
func (r *BodyReader) limit(limit int) int {
	return min(cmp.Or(limit, math.MaxInt-1), cmp.Or(r.cfg.MaxBody, math.MaxInt-1))
}

// Read reads the request's body into ctx.PostBody. limit is the body's own bound in bytes, or 0. The caller must Drop
// the Body, at the latest when the request ends.
func (r *BodyReader) Read(ctx *fasthttp.RequestCtx, limit int) (Body, error) {
	src := ctx.RequestBodyStream()
	if src == nil {
		return Body{}, nil
	}
	if n := skippedLength(ctx); n > 0 {
		closeAfterResponse(ctx)
		if err := r.CheckSize(n, limit); err != nil {
			return Body{}, err
		}
		return Body{}, ErrBuffersFull // skipped because of a limit that has room again, but the body cannot be read any more
	}
	b := Body{reader: r, ctx: ctx}
	n, err := r.fill(&b, src, ctx.Request.Header.ContentLength(), r.limit(limit))
	if err != nil {
		closeAfterResponse(ctx)
		b.Drop()
		return Body{}, err
	}
	ctx.Request.ResetBody() // ends the stream
	if n > 0 {
		ctx.Request.SetBodyRaw((*b.buf)[:n])
	}
	return b, nil
}

// fill reads a body of size bytes, or chunks if size is negative, of at most limit bytes.
func (r *BodyReader) fill(b *Body, src io.Reader, size, limit int) (n int, err error) {
	if err := r.CheckSize(size, limit); err != nil {
		return 0, err
	}
	body := bodyStream{reader: r, ctx: b.ctx, src: src, size: size, limit: limit}
	for size < 0 || n < size {
		if b.buf == nil || n == len(*b.buf) {
			if err := r.grow(b, n, size, limit); err != nil {
				return n, err
			}
		}
		m, err := body.Read((*b.buf)[n:])
		if n += m; err == io.EOF {
			break
		} else if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Stream returns a reader of the request's body that holds none of it. limit bounds the body in bytes, in place of
// MaxBody. Read returns the errors of BodyReader.Read; a body that is not read to its end ends the connection.
func (r *BodyReader) Stream(ctx *fasthttp.RequestCtx, limit int) (io.Reader, error) {
	src, size := ctx.RequestBodyStream(), ctx.Request.Header.ContentLength()
	skipped := skippedLength(ctx)
	switch {
	case max(size, skipped) > limit:
		closeAfterResponse(ctx)
		return nil, ErrBodyTooLarge
	case skipped > 0: // refused by its head, for a reason that no longer holds
		closeAfterResponse(ctx)
		return nil, ErrBuffersFull
	case src == nil || size == 0:
		return bytes.NewReader(nil), nil
	}
	return &bodyStream{reader: r, ctx: ctx, src: src, size: size, limit: limit}, nil
}

// bodyStream reads a body within the limits of its arrival.
type bodyStream struct {
	reader      *BodyReader
	ctx         *fasthttp.RequestCtx
	src         io.Reader
	size, limit int // size is negative for chunks
	n, reads    int
	began, due  time.Time // of the reads that fasthttp's ReadTimeout does not bound
	err         error     // of the last Read
}

// Read implements io.Reader. After an error where the body ends is not known, so the connection is closed with the
// response.
func (s *bodyStream) Read(p []byte) (n int, err error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err = s.read(p)
	if s.err = err; err != nil && err != io.EOF {
		s.ctx.SetConnectionClose()
	}
	return n, err
}

func (s *bodyStream) read(p []byte) (int, error) {
	if s.n == s.size {
		return 0, io.EOF
	}
	if s.reads++; s.reads > 2 || s.size < 0 { // the first two are what fasthttp read ahead, and one under its ReadTimeout
		now := time.Now()
		s.began = cmp.Or(s.began, now)
		if next := s.reader.deadline(s.began, now, s.n); next.Sub(s.due) > s.reader.cfg.ReadTimeout/16 {
			s.due = next
			if err := s.ctx.Conn().SetReadDeadline(s.due); err != nil {
				return 0, ErrBodyBroken
			}
		}
	}
	m, err := s.src.Read(p)
	s.n += m
	switch {
	case err == io.EOF && s.size >= 0 && s.n != s.size:
		return m, ErrBodyBroken
	case err != nil && err != io.EOF:
		return m, s.reader.failure(err, s.due)
	case s.n > s.limit:
		return m, ErrBodyTooLarge
	}
	return m, err
}

// Put makes body, which it copies, the request's body, as Read does. The error is ErrBodyTooLarge or ErrBuffersFull.
func (r *BodyReader) Put(ctx *fasthttp.RequestCtx, body []byte) (Body, error) {
	if err := r.CheckSize(len(body), 0); err != nil || len(body) == 0 {
		return Body{}, err
	}
	room := bodySize(len(body))
	if err := r.Reserve(room); err != nil {
		return Body{}, err
	}
	b := Body{reader: r, ctx: ctx, buf: getBody(room)}
	copy(*b.buf, body)
	ctx.Request.SetBodyRaw((*b.buf)[:len(body)])
	return b, nil
}

// deadline returns when the next bytes of a body must arrive, given n bytes since began.
func (r *BodyReader) deadline(began, now time.Time, n int) time.Time {
	byRate := began.Add(r.cfg.ReadTimeout + time.Duration(float64(n)/float64(r.cfg.MinRate)*float64(time.Second)))
	return earlier(byRate, now.Add(r.cfg.ReadTimeout))
}

// failure maps a failed read to an error of Read. fasthttp hides the cause of errors within a chunk's framing.
func (r *BodyReader) failure(err error, due time.Time) error {
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || !due.IsZero() && !time.Now().Before(due) {
		return ErrBodySlow
	}
	return fmt.Errorf("%w: %w", ErrBodyBroken, err)
}

const (
	firstPiece     = 64 << 10 // first buffer, before any byte of the body arrived
	fullSizeFactor = 32       // a body up to this multiple of the bytes that arrived gets a buffer of its full size
	growthFactor   = 8        // a larger body gets a buffer of this multiple
)

// grow makes room after the first n bytes. It grows in large steps, so that little is copied; after the first one the
// buffer is never larger than 32 times the bytes that arrived. The room is counted before it is allocated.
func (r *BodyReader) grow(b *Body, n, size, limit int) error {
	room := growthFactor * n
	switch {
	case n == 0 && size < 0:
		room = minBody
	case n == 0:
		room = min(size, firstPiece)
	case size >= 0 && size <= fullSizeFactor*n:
		room = size
	}
	room = bodySize(min(room, limit+1))         // one byte more reveals chunks that exceed limit
	if err := r.Reserve(room - n); err != nil { // n is the length of the old buffer
		return err
	}
	buf := getBody(room)
	if b.buf != nil {
		copy(*buf, *b.buf)
		putBody(b.buf)
	}
	b.buf = buf
	return nil
}

const (
	drainBytes = 64 << 10    // how much of an unwanted body is read to keep the connection usable
	drainFor   = time.Second // how long that may take
)

// Skippable reports whether SkipBody leaves a body of n bytes unread.
func Skippable(n int) bool { return n > drainBytes }

// SkipBody makes fasthttp leave a body unread, so that refusing a request by its head does not wait for the first body
// byte. Call it in the server's HeaderReceived. It skips no small bodies, since Finish reads those.
func SkipBody(h *fasthttp.RequestHeader) {
	if Skippable(h.ContentLength()) {
		h.SetContentLength(0)
	}
}

// skippedLength returns the length of a body that SkipBody left unread, or 0 if there is none.
func skippedLength(ctx *fasthttp.RequestCtx) int {
	h := &ctx.Request.Header
	if h.ContentLength() != 0 {
		return 0
	}
	for v := range fieldValues(h.RawHeaders(), "content-length") {
		if n, err := strconv.Atoi(string(bytes.TrimSpace(v))); err != nil || n > 0 {
			return max(n, 1)
		}
	}
	return 0
}

// Finish leaves the connection ready for the next request. It reads a small unread body now. If the body is larger, or
// does not arrive immediately, or the response has no length and goes to an HTTP/1.0 client, the connection closes
// after the response.
func (r *BodyReader) Finish(ctx *fasthttp.RequestCtx) {
	disableChunking(ctx)
	src := ctx.RequestBodyStream()
	if src == nil {
		return // already read, or none
	}
	size := ctx.Request.Header.ContentLength()
	if size == 0 && skippedLength(ctx) == 0 {
		return
	}
	if size == 0 || size > drainBytes || ctx.Response.ConnectionClose() || !discardRest(ctx, src, size) {
		closeAfterResponse(ctx)
	}
}

// discardRest reads the rest of a body within the drain limits and reports whether it reached the end.
func discardRest(ctx *fasthttp.RequestCtx, src io.Reader, size int) bool {
	if ctx.Conn().SetReadDeadline(time.Now().Add(drainFor)) != nil {
		return false
	}
	buf := getBuffer(false)
	defer putBuffer(buf)
	for n := 0; n <= drainBytes; {
		m, err := src.Read(*buf)
		if n += m; n == size || err == io.EOF && size < 0 {
			ctx.Request.ResetBody()
			return true
		} else if err != nil {
			return false
		}
	}
	return false
}

// closeAfterResponse closes the connection after the response, and lingers so that the response is not lost if the
// client is still sending.
func closeAfterResponse(ctx *fasthttp.RequestCtx) {
	ctx.Request.ResetBody()
	ctx.SetConnectionClose()
	Linger(ctx.Conn())
}

const (
	minBody   = 2 << 10 // the smallest buffer of a body
	maxPooled = 4 << 20 // the largest one that is kept for reuse
)

// bodyBuffers pools buffers for bodies, by powers of two from minBody.
var bodyBuffers [12]sync.Pool

// bodySize returns the length of the buffer for n bytes.
func bodySize(n int) int {
	if n > maxPooled {
		return n
	}
	return max(1<<bits.Len(uint(n-1)), minBody)
}

// getBody returns a buffer of n bytes; n comes from bodySize.
func getBody(n int) *[]byte {
	if n <= maxPooled {
		if b, ok := bodyBuffers[bits.Len(uint(n/minBody))-1].Get().(*[]byte); ok {
			return b
		}
	}
	b := make([]byte, n)
	return &b
}

func putBody(b *[]byte) {
	if n := len(*b); n <= maxPooled {
		bodyBuffers[bits.Len(uint(n/minBody))-1].Put(b)
	}
}

// SmugglingCheck reports whether a request carries both Content-Length and Transfer-Encoding, whatever their case,
// order or value. fasthttp accepts such a request and shows a rewritten header, so a proxy in front of us may have seen
// the body end elsewhere. The caller returns 400. The connection is marked to close after that response, because its
// next bytes can be a smuggled request. The check needs no server option.
func SmugglingCheck(ctx *fasthttp.RequestCtx) bool {
	raw := ctx.Request.Header.RawHeaders()
	if !hasField(raw, "transfer-encoding") || !hasField(raw, "content-length") {
		return false
	}
	ctx.SetConnectionClose()
	return true
}
