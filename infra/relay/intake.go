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

// Errors of Intake.Read. The connection closes after the response.
var (
	ErrBodyTooLarge = fasthttp.ErrBodyTooLarge
	ErrBodySlow     = errors.New("the body arrives too slowly")
	ErrBodyBroken   = errors.New("the body ended early, or its chunks are malformed")
	ErrBuffersFull  = errors.New("too many request bytes are buffered")
)

// IntakeConfig holds the limits of an Intake.
type IntakeConfig struct {
	// MaxBody bounds every body, in bytes; 0 means no bound.
	MaxBody int
	// MaxHeld bounds the buffers of all bodies together, in bytes; 0 means no bound.
	MaxHeld int64
	// ReadTimeout bounds the arrival of a head, each pause in a body, and how far a body may fall behind MinRate;
	// default 30 s.
	ReadTimeout time.Duration
	// MinRate is the least rate of a body, in bytes a second; default 64 KiB/s. A body of n bytes may take ReadTimeout
	// plus n/MinRate seconds.
	MinRate int
}

// Intake reads request bodies for a fasthttp server. It reads nothing before the handler asks for it, and its memory
// follows the bytes that arrived, not the Content-Length. A handler calls Read after accepting the head, and in any
// case Finish before it returns. An Intake is safe for concurrent use.
type Intake struct {
	cfg      IntakeConfig
	buffered atomic.Int64
}

// NewIntake creates an Intake.
func NewIntake(cfg IntakeConfig) *Intake {
	cfg.ReadTimeout = cmp.Or(max(cfg.ReadTimeout, 0), 30*time.Second)
	cfg.MinRate = cmp.Or(max(cfg.MinRate, 0), 64<<10)
	return &Intake{cfg: cfg}
}

// Configure sets the options of s that an Intake requires: s passes requests on with their bodies unread, forms
// included. MaxRequestBodySize only bounds what fasthttp reads ahead; it may not be 0.
func (in *Intake) Configure(s *fasthttp.Server) {
	s.StreamRequestBody, s.DisablePreParseMultipartForm = true, true
	s.MaxRequestBodySize = 1
	s.ReadTimeout = in.cfg.ReadTimeout
}

// Buffered returns the bytes of all buffers in use.
func (in *Intake) Buffered() int64 { return in.buffered.Load() }

// Body is a request's body in a buffer of an Intake. The zero Body is empty.
type Body struct {
	in  *Intake
	ctx *fasthttp.RequestCtx
	buf *[]byte

	more int64 // bytes that were added
}

// Drop returns the buffer and what was added. The request's body is then empty, and slices of it are invalid. Drop can
// be called twice.
func (b *Body) Drop() {
	if b.buf == nil {
		return
	}
	b.ctx.Request.ResetBody()
	b.in.buffered.Add(-int64(len(*b.buf)) - b.more)
	putBody(b.buf)
	b.buf, b.more = nil, 0
}

// Add counts n bytes that the request holds besides its body, which is not empty, until Drop. The error is
// ErrBuffersFull.
func (b *Body) Add(n int) error {
	if err := b.in.reserve(int64(n)); err != nil {
		return err
	}
	b.more += int64(n)
	return nil
}

// Reserve counts n bytes that are held besides bodies, such as those of a response, until Release. The error is
// ErrBuffersFull.
func (in *Intake) Reserve(n int) error { return in.reserve(int64(n)) }

// Release ends the count of n bytes.
func (in *Intake) Release(n int) { in.buffered.Add(-int64(n)) }

// reserve counts n bytes if the limit leaves room for them.
func (in *Intake) reserve(n int64) error {
	if held := in.buffered.Add(n); in.cfg.MaxHeld > 0 && held > in.cfg.MaxHeld {
		in.buffered.Add(-n)
		return ErrBuffersFull
	}
	return nil
}

// CheckSize returns nil if a body of n bytes is within the limits now. It returns ErrBodyTooLarge if n exceeds MaxBody
// or limit (0 for none), and ErrBuffersFull if the buffers are full.
func (in *Intake) CheckSize(n, limit int) error {
	if limit = in.limit(limit); n > limit {
		return ErrBodyTooLarge
	}
	if in.cfg.MaxHeld > 0 && n > 0 && in.buffered.Load()+int64(n) > in.cfg.MaxHeld {
		return ErrBuffersFull
	}
	return nil
}

// limit returns the smaller of limit and MaxBody; either may be 0 for no bound.
func (in *Intake) limit(limit int) int {
	return min(cmp.Or(limit, math.MaxInt-1), cmp.Or(in.cfg.MaxBody, math.MaxInt-1))
}

// Read reads the request's body into ctx.PostBody. limit is the body's own bound in bytes, or 0. The caller must Drop
// the Body, at the latest when the request ends.
func (in *Intake) Read(ctx *fasthttp.RequestCtx, limit int) (Body, error) {
	src := ctx.RequestBodyStream()
	if src == nil {
		return Body{}, nil
	}
	if n := skippedLength(ctx); n > 0 {
		closeAfterResponse(ctx)
		if err := in.CheckSize(n, limit); err != nil {
			return Body{}, err
		}
		return Body{}, ErrBuffersFull // the limit that refused the head no longer does
	}
	b := Body{in: in, ctx: ctx}
	n, err := in.fill(&b, src, ctx.Request.Header.ContentLength(), in.limit(limit))
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
func (in *Intake) fill(b *Body, src io.Reader, size, limit int) (n int, err error) {
	if err := in.CheckSize(size, limit); err != nil {
		return 0, err
	}
	var reads int
	var began, due time.Time // of the reads that fasthttp's deadline for the head does not bound
	for size < 0 || n < size {
		if b.buf == nil || n == len(*b.buf) {
			if err := in.grow(b, n, size, limit); err != nil {
				return n, err
			}
		}
		if reads++; reads > 2 || size < 0 { // until the second read of a body with a Content-Length, that deadline applies
			now := time.Now()
			began = cmp.Or(began, now)
			if next := in.deadline(began, now, n); next.Sub(due) > in.cfg.ReadTimeout/16 {
				due = next
				if err := b.ctx.Conn().SetReadDeadline(due); err != nil {
					return n, ErrBodyBroken
				}
			}
		}
		m, err := src.Read((*b.buf)[n:])
		if n += m; err == io.EOF {
			break
		} else if err != nil {
			return n, in.failure(err, due)
		}
		if n > limit {
			return n, ErrBodyTooLarge
		}
	}
	if size >= 0 && n != size {
		return n, ErrBodyBroken
	}
	return n, nil
}

// deadline returns when the next bytes of a body must arrive, given n bytes since began.
func (in *Intake) deadline(began, now time.Time, n int) time.Time {
	byRate := began.Add(in.cfg.ReadTimeout + time.Duration(float64(n)/float64(in.cfg.MinRate)*float64(time.Second)))
	return earlier(byRate, now.Add(in.cfg.ReadTimeout))
}

// failure maps a failed read to an error of Read. fasthttp hides the cause of errors within a chunk's framing.
func (in *Intake) failure(err error, due time.Time) error {
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

// grow makes room after the first n bytes. Its steps are large, so little is copied, but never above 32 times the bytes
// that arrived. The room is counted before it is allocated.
func (in *Intake) grow(b *Body, n, size, limit int) error {
	room := growthFactor * n
	switch {
	case n == 0 && size < 0:
		room = minBody
	case n == 0:
		room = min(size, firstPiece)
	case size >= 0 && size <= fullSizeFactor*n:
		room = size
	}
	room = bodySize(min(room, limit+1)) // one byte more reveals chunks that exceed limit
	more := int64(room)
	if b.buf != nil {
		more -= int64(n)
	}
	if err := in.reserve(more); err != nil {
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
// byte. Use it as HeaderReceived. It skips no small bodies, since Finish reads those.
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
// does not arrive immediately, or the response has no length and goes to HTTP/1.0, the connection closes after the
// response.
func (in *Intake) Finish(ctx *fasthttp.RequestCtx) {
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

// SmugglingCheck reports a request that carries both Content-Length and Transfer-Encoding, whatever their case, order
// or value. fasthttp accepts such a request and shows a rewritten header, so a proxy in front of us may have seen the
// body end elsewhere. The caller returns 400. The connection is marked to close after that response, because its next
// bytes can be a smuggled request. The check needs no server option.
func SmugglingCheck(ctx *fasthttp.RequestCtx) bool {
	raw := ctx.Request.Header.RawHeaders()
	if !hasField(raw, "transfer-encoding") || !hasField(raw, "content-length") {
		return false
	}
	ctx.SetConnectionClose()
	return true
}
