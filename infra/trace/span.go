package trace

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"time"
)

// Kind is a span's role, with OTLP's numbers.
type Kind int

// The kinds in use.
const (
	Internal Kind = 1
	Server   Kind = 2 // answers a request
	Client   Kind = 3 // makes one
)

// Span is an operation of a trace. It belongs to one goroutine at a time; End hands it over, and nothing of it may be called
// after that. A nil Span does nothing.
type Span struct {
	tracer *Tracer
	own    Context
	parent [8]byte // zero: none
	name   string
	kind   Kind
	start  time.Time
	end    time.Time
	attrs  []attr
	failed bool
}

type attr struct {
	key    string
	text   string
	number int64
	isText bool
}

// Begin begins a request's first span in this program: in the trace that the header names, else in a new one. A trace that its
// sender does not record is not recorded here either: Begin returns nil.
func (t *Tracer) Begin(header []byte, name string, start time.Time) *Span {
	if t == nil {
		return nil
	}
	if _, ok := Parse(header); ok {
		return t.Continue(header, name, start)
	}
	s := &Span{tracer: t, name: name, kind: Server, start: start}
	for _, id := range [][]byte{s.own.trace[:8], s.own.trace[8:], s.own.span[:]} {
		binary.NativeEndian.PutUint64(id, nonZero())
	}
	return s
}

// Continue is Begin for requests that belong to a trace or are not recorded.
func (t *Tracer) Continue(header []byte, name string, start time.Time) *Span {
	if t == nil {
		return nil
	}
	c, ok := Parse(header)
	if !ok || c.quiet {
		return nil
	}
	s := &Span{tracer: t, own: c, parent: c.span, name: name, kind: Server, start: start}
	binary.NativeEndian.PutUint64(s.own.span[:], nonZero())
	return s
}

// Child begins a span below this one.
func (s *Span) Child(kind Kind, name string, start time.Time) *Span {
	if s == nil {
		return nil
	}
	c := &Span{tracer: s.tracer, own: s.own, parent: s.own.span, name: name, kind: kind, start: start}
	binary.NativeEndian.PutUint64(c.own.span[:], nonZero())
	return c
}

// nonZero returns random bits for an id, which names a span and protects nothing. Zero is no valid id.
func nonZero() uint64 {
	for {
		if v := rand.Uint64(); v != 0 {
			return v
		}
	}
}

// AppendContext appends the value of the header for a request that this span makes; a nil Span appends nothing.
func (s *Span) AppendContext(dst []byte) []byte {
	if s == nil {
		return dst
	}
	return s.own.Append(dst)
}

// Trace returns the trace's id in hexadecimal digits, "" of a nil Span.
func (s *Span) Trace() string {
	if s == nil {
		return ""
	}
	return hex.EncodeToString(s.own.trace[:])
}

// maxText bounds the text of an attribute, in bytes.
const maxText = 256

// Text adds an attribute, which a text of no length leaves out.
func (s *Span) Text(key, value string) {
	if s != nil && value != "" {
		s.attrs = append(s.attrs, attr{key: key, text: value[:min(len(value), maxText)], isText: true})
	}
}

// Number adds an attribute.
func (s *Span) Number(key string, value int64) {
	if s != nil {
		s.attrs = append(s.attrs, attr{key: key, number: value})
	}
}

// Fail marks the span as failed.
func (s *Span) Fail() {
	if s != nil {
		s.failed = true
	}
}

// End ends the span at a time. It never blocks: a span that the collector is too slow for is dropped.
func (s *Span) End(at time.Time) {
	if s == nil {
		return
	}
	s.end = at
	select {
	case s.tracer.ended <- s:
	default:
		s.tracer.dropped.Add(1)
	}
}
