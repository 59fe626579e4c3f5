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

// Errors of Intake.Read. The connection is closed after the answer.
var (
	ErrBodyTooLarge = fasthttp.ErrBodyTooLarge
	ErrBodySlow     = errors.New("the body arrives too slowly")
	ErrBodyBroken   = errors.New("the body ended early, or its chunks are broken")
	ErrBuffersFull  = errors.New("too many bytes of request bodies are held")
)

// IntakeConfig holds the limits of an Intake.
type IntakeConfig struct {
	// MaxBody bounds every body, in bytes; 0 is no bound.
	MaxBody int
	// MaxHeld bounds the buffers of all bodies together, in bytes; 0 is no bound.
	MaxHeld int64
	// ReadTimeout bounds the arrival of a head, each pause in a body, and how far a body may lag behind MinRate; default 30 s.
	ReadTimeout time.Duration
	// MinRate is what a body has to arrive with, in bytes a second; default 64 KiB/s. A body of n bytes may take ReadTimeout
	// and n/MinRate seconds.
	MinRate int
}

// Intake reads request bodies for a fasthttp server as they arrive: nothing is read before the handler asks for it, and
// memory follows the bytes that came, not the Content-Length. A handler calls Read when the head has been accepted, and
// Finish before it returns in any case. An Intake is safe for concurrent use.
type Intake struct {
	cfg      IntakeConfig
	buffered atomic.Int64
}

// NewIntake makes an Intake.
func NewIntake(cfg IntakeConfig) *Intake {
	cfg.ReadTimeout = cmp.Or(max(cfg.ReadTimeout, 0), 30*time.Second)
	cfg.MinRate = cmp.Or(max(cfg.MinRate, 0), 64<<10)
	return &Intake{cfg: cfg}
}

// Configure sets the options of s that the intake of bodies needs: s hands requests over with their bodies unread, forms
// included. MaxRequestBodySize is only how much of a body fasthttp reads ahead; it takes no 0.
func (in *Intake) Configure(s *fasthttp.Server) {
	s.StreamRequestBody, s.DisablePreParseMultipartForm = true, true
	s.MaxRequestBodySize = 1
	s.ReadTimeout = in.cfg.ReadTimeout
}

// Buffered is how many bytes of buffers hold bodies now.
func (in *Intake) Buffered() int64 { return in.buffered.Load() }

// Body is a request's body in a buffer of an Intake. The zero Body is empty.
type Body struct {
	in  *Intake
	ctx *fasthttp.RequestCtx
	buf *[]byte
}

// Drop gives the buffer back; the request's body is empty then, and slices of it are void. It may be called twice.
func (b *Body) Drop() {
	if b.buf == nil {
		return
	}
	b.ctx.Request.ResetBody()
	b.in.buffered.Add(-int64(len(*b.buf)))
	giveBody(b.buf)
	b.buf = nil
}

// Fits reports whether a body of n bytes is within the limits now and has at most so many bytes, 0 being no bound of its own:
// ErrBodyTooLarge or ErrBuffersFull if it is not.
func (in *Intake) Fits(n, most int) error {
	if most = in.bound(most); n > most {
		return ErrBodyTooLarge
	}
	if in.cfg.MaxHeld > 0 && n > 0 && in.buffered.Load()+int64(n) > in.cfg.MaxHeld {
		return ErrBuffersFull
	}
	return nil
}

// bound is the smaller of a body's own bound and MaxBody; 0 is none.
func (in *Intake) bound(most int) int {
	return min(cmp.Or(most, math.MaxInt-1), cmp.Or(in.cfg.MaxBody, math.MaxInt-1))
}

// Read reads the request's body, of at most so many bytes, 0 being no bound of its own; ctx.PostBody is all of it then. The
// caller must Drop it, at the latest when the request ends.
func (in *Intake) Read(ctx *fasthttp.RequestCtx, most int) (Body, error) {
	src := ctx.RequestBodyStream()
	if src == nil {
		return Body{}, nil
	}
	if n := skipped(ctx); n > 0 {
		cut(ctx)
		if err := in.Fits(n, most); err != nil {
			return Body{}, err
		}
		return Body{}, ErrBuffersFull // the limit that refused the head has gone meanwhile
	}
	b := Body{in: in, ctx: ctx}
	n, err := in.fill(&b, src, ctx.Request.Header.ContentLength(), in.bound(most))
	if err != nil {
		cut(ctx)
		b.Drop()
		return Body{}, err
	}
	ctx.Request.ResetBody() // ends the stream
	if n > 0 {
		ctx.Request.SetBodyRaw((*b.buf)[:n])
	}
	return b, nil
}

// fill reads a body of size bytes, or of chunks where size is negative, of at most so many bytes.
func (in *Intake) fill(b *Body, src io.Reader, size, most int) (n int, err error) {
	if err := in.Fits(size, most); err != nil {
		return 0, err
	}
	var began, due time.Time // until the second read, fasthttp's deadline for the head holds
	for reads := 0; size < 0 || n < size; reads++ {
		if b.buf == nil || n == len(*b.buf) {
			if err := in.grow(b, n, size, most); err != nil {
				return n, err
			}
		}
		if reads > 1 || size < 0 {
			now := time.Now()
			if began.IsZero() {
				began = now
			}
			if next := in.due(began, now, n); next.Sub(due) > in.cfg.ReadTimeout/16 {
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
		if n > most {
			return n, ErrBodyTooLarge
		}
	}
	if size >= 0 && n != size {
		return n, ErrBodyBroken
	}
	return n, nil
}

// due is when the next bytes of a body must arrive, of which n have arrived since began.
func (in *Intake) due(began, now time.Time, n int) time.Time {
	byRate := began.Add(in.cfg.ReadTimeout + time.Duration(float64(n)/float64(in.cfg.MinRate)*float64(time.Second)))
	return earlier(byRate, now.Add(in.cfg.ReadTimeout))
}

// failure says what a failed read means. Of an error within a chunk's frame fasthttp hides the cause.
func (in *Intake) failure(err error, due time.Time) error {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() || !due.IsZero() && !time.Now().Before(due) {
		return ErrBodySlow
	}
	return fmt.Errorf("%w: %w", ErrBodyBroken, err)
}

const (
	firstPiece = 64 << 10 // bytes that a body gets before anything of it came
	lastStep   = 32       // times what came: a body no larger than that gets its whole size
	otherSteps = 8        // times what came: what a larger one gets
)

// grow makes room behind the n bytes that came. Few bytes are copied, since steps are large, but never more than 32 times
// what came is taken. The room is counted before it is allocated.
func (in *Intake) grow(b *Body, n, size, most int) error {
	room := otherSteps * n
	switch {
	case n == 0 && size < 0:
		room = minBody
	case n == 0:
		room = min(size, firstPiece)
	case size >= 0 && size <= lastStep*n:
		room = size
	}
	room = bodySize(min(room, most+1)) // chunks: the byte too many shows
	more := int64(room)
	if b.buf != nil {
		more -= int64(n)
	}
	if held := in.buffered.Add(more); in.cfg.MaxHeld > 0 && held > in.cfg.MaxHeld {
		in.buffered.Add(-more)
		return ErrBuffersFull
	}
	buf := takeBody(room)
	if b.buf != nil {
		copy(*buf, *b.buf)
		giveBody(b.buf)
	}
	b.buf = buf
	return nil
}

const (
	drainBytes = 64 << 10    // of an unwanted body are read, to keep the connection usable
	drainFor   = time.Second // that takes at most
)

// SkipBody makes fasthttp leave a body where it is, so that the answer to a head that is refused does not wait for the
// first byte. It is for HeaderReceived. Small bodies are not skipped, since Finish reads those.
func SkipBody(h *fasthttp.RequestHeader) {
	if n := h.ContentLength(); n > drainBytes {
		h.SetContentLength(0)
	}
}

// skipped is the length of a body that SkipBody left unread, 0 for none.
func skipped(ctx *fasthttp.RequestCtx) int {
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

// Finish leaves the connection ready for the next request: a small body that was not read is read now; behind a larger
// one, or one that does not come at once, the connection is closed after the answer.
func (in *Intake) Finish(ctx *fasthttp.RequestCtx) {
	src := ctx.RequestBodyStream()
	if src == nil {
		return // it was read, or there is none
	}
	size := ctx.Request.Header.ContentLength()
	if size == 0 && skipped(ctx) == 0 {
		return
	}
	if size == 0 || size > drainBytes || ctx.Response.ConnectionClose() || !readOff(ctx, src, size) {
		cut(ctx)
	}
}

// readOff reads a body to its end and reports whether that was near.
func readOff(ctx *fasthttp.RequestCtx, src io.Reader, size int) bool {
	if ctx.Conn().SetReadDeadline(time.Now().Add(drainFor)) != nil {
		return false
	}
	buf := takeBuffer(false)
	defer giveBuffer(buf)
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

// cut closes the connection after the answer, which what the client still sends does not spoil.
func cut(ctx *fasthttp.RequestCtx) {
	ctx.Request.ResetBody()
	ctx.SetConnectionClose()
	Linger(ctx.Conn())
}

const (
	minBody = 2 << 10 // the smallest buffer of a body
	maxBody = 4 << 20 // the largest one that is kept for another body
)

// bodyBuffers keep buffers for bodies, by powers of two from minBody.
var bodyBuffers [12]sync.Pool

// bodySize is the length of the buffer that n bytes get.
func bodySize(n int) int {
	if n > maxBody {
		return n
	}
	return max(1<<bits.Len(uint(n-1)), minBody)
}

// takeBody returns a buffer of n bytes, which bodySize gave.
func takeBody(n int) *[]byte {
	if n <= maxBody {
		if b, ok := bodyBuffers[bits.Len(uint(n/minBody))-1].Get().(*[]byte); ok {
			return b
		}
	}
	b := make([]byte, n)
	return &b
}

func giveBody(b *[]byte) {
	if n := len(*b); n <= maxBody {
		bodyBuffers[bits.Len(uint(n/minBody))-1].Put(b)
	}
}
