package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"reveille/infra/relay"
)

// How much of an answer is kept to find its usage: engines put that into the first or the last object.
const (
	headSize = 512
	tailSize = 4 << 10
)

// source is a relayed response or stream.
type source interface {
	io.ReadCloser
	io.WriterTo
}

// tap passes a body through and records its first and last bytes and the time of its first byte.
type tap struct {
	source
	x     *exchange
	first time.Time
	kept  *excerpt // nil before the first byte and after release
	tee   teeTail  // of WriteTo

	events int64 // of a stream, about
	bytes  int64 // that were passed on
}

// excerpt holds both ends of an answer.
type excerpt struct {
	head, tail []byte
	store      [headSize + tailSize]byte
}

var excerpts = sync.Pool{New: func() any { return new(excerpt) }}

// sendBody makes a stream the body of the answer, through a tap. The stream's end finishes the exchange. If the first
// bytes are still to come, the head is sent at once.
func (x *exchange) sendBody(from source, size int) {
	x.tapped = tap{source: from, x: x}
	x.tap = &x.tapped
	if x.translator != nil {
		x.Ctx.Response.SetBodyStream(&translation{tap: x.tap, to: x.translator}, size)
	} else {
		x.Ctx.Response.SetBodyStream(x.tap, size)
	}
	x.finishedByStream = true
	x.observed.setEndsWithStream()
	resp, ok := from.(*relay.Response)
	x.Ctx.Response.ImmediateHeaderFlush = ok && size < 0 && resp.Buffered() == 0
}

// SupportsBodyWriteTo tells fasthttp that it may use WriteTo instead of Read.
func (t *tap) SupportsBodyWriteTo() bool { return true }

// Read passes bytes through.
func (t *tap) Read(p []byte) (n int, err error) {
	defer t.recover(&err)
	n, err = t.source.Read(p)
	t.keep(p[:n])
	return n, err
}

// WriteTo passes the whole body through.
func (t *tap) WriteTo(w io.Writer) (n int64, err error) {
	defer t.recover(&err)
	t.tee = teeTail{t, w}
	return t.source.WriteTo(&t.tee)
}

// recover turns a panic of the stream into its end: it cuts the client's body, and the close finishes the exchange.
func (t *tap) recover(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("panic in an answer: %v", v)
		t.x.s.log.Error("panic in an answer", "request", t.x.ID, "panic", v, "stack", string(debug.Stack()))
	}
}

// teeTail passes writes through, and Flush too, so that a slow body is not held back.
type teeTail struct {
	t *tap
	w io.Writer
}

func (tt teeTail) Write(p []byte) (int, error) {
	n, err := tt.w.Write(p)
	tt.t.keep(p[:n])
	return n, err
}

// Flush flushes the client's connection, as a relayed response asks before it waits.
func (tt teeTail) Flush() error {
	if f, ok := tt.w.(interface{ Flush() error }); ok {
		return f.Flush()
	}
	return nil
}

var eventEnd = []byte("\n\n")

func (t *tap) keep(p []byte) {
	if len(p) == 0 {
		return
	}
	if t.first.IsZero() && p[0] != ':' { // a comment is not part of the answer
		t.first = time.Now()
		if t.x != nil {
			t.x.dropBody() // the request cannot be sent again
		}
	}
	t.bytes += int64(len(p))
	t.events += int64(bytes.Count(p, eventEnd))
	if t.kept == nil {
		t.kept = excerpts.Get().(*excerpt)
		t.kept.head, t.kept.tail = t.kept.store[:0:headSize], t.kept.store[headSize:headSize]
	}
	k := t.kept
	k.head = append(k.head, p[:min(len(p), headSize-len(k.head))]...)
	if len(p) > tailSize {
		p = p[len(p)-tailSize:]
	}
	if over := len(k.tail) + len(p) - tailSize; over > 0 {
		k.tail = k.tail[:copy(k.tail, k.tail[over:])]
	}
	k.tail = append(k.tail, p...)
}

// firstByte returns the time from began to the first byte, 0 if there was none.
func (t *tap) firstByte(began time.Time) time.Duration {
	if t.first.IsZero() {
		return 0
	}
	return t.first.Sub(began)
}

// release frees the memory; the tap must not be used after it.
func (t *tap) release() {
	if t.kept != nil {
		excerpts.Put(t.kept)
		t.kept = nil
	}
}
