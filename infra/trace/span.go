package trace

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	otrace "go.opentelemetry.io/otel/trace"
)

// Header is the name of W3C's header with the trace context of a request.
const Header = "traceparent"

// Kind is a span's role.
type Kind = otrace.SpanKind

// The kinds in use.
const (
	Internal = otrace.SpanKindInternal
	Server   = otrace.SpanKindServer // serves a request
	Client   = otrace.SpanKindClient // makes one
)

// Span is an operation of a trace. It belongs to one goroutine at a time, and nothing of it can be called after End. A
// nil Span does nothing.
type Span struct {
	spans otrace.Tracer
	ctx   context.Context // with span
	span  otrace.Span
}

// Start starts a request's first span in this program: in the trace that the header names, else in a new one. A trace
// that its sender does not record is not recorded here either: Start returns nil.
func (t *Tracer) Start(header []byte, name string, start time.Time) *Span {
	if t == nil {
		return nil
	}
	ctx, parent := parse(header)
	if parent.IsValid() && !parent.IsSampled() {
		return nil
	}
	return startSpan(ctx, t.spans, Server, name, start)
}

// Continue is Start for requests that belong to a trace or are not recorded.
func (t *Tracer) Continue(header []byte, name string, start time.Time) *Span {
	if t == nil {
		return nil
	}
	ctx, parent := parse(header)
	if !parent.IsSampled() {
		return nil
	}
	return startSpan(ctx, t.spans, Server, name, start)
}

// parse reads the header's value.
func parse(header []byte) (context.Context, otrace.SpanContext) {
	carrier := propagation.MapCarrier{Header: string(header)}
	ctx := propagation.TraceContext{}.Extract(context.Background(), carrier)
	return ctx, otrace.SpanContextFromContext(ctx)
}

func startSpan(ctx context.Context, spans otrace.Tracer, kind Kind, name string, start time.Time) *Span {
	ctx, span := spans.Start(ctx, name, otrace.WithSpanKind(kind), otrace.WithTimestamp(start))
	return &Span{spans, ctx, span}
}

// Child starts a span below this one.
func (s *Span) Child(kind Kind, name string, start time.Time) *Span {
	if s == nil {
		return nil
	}
	return startSpan(s.ctx, s.spans, kind, name, start)
}

// AppendContext appends the value of the header for a request that this span makes; a nil Span appends nothing.
func (s *Span) AppendContext(dst []byte) []byte {
	if s == nil {
		return dst
	}
	c := s.span.SpanContext()
	return fmt.Appendf(dst, "00-%s-%s-%s", c.TraceID(), c.SpanID(), c.TraceFlags())
}

// Trace returns the trace's id in hexadecimal digits, "" of a nil Span.
func (s *Span) Trace() string {
	if s == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Text adds an attribute, which a text of no length leaves out.
func (s *Span) Text(key, value string) {
	if s != nil && value != "" {
		s.span.SetAttributes(attribute.String(key, strings.ToValidUTF8(value, "\uFFFD")))
	}
}

// Number adds an attribute.
func (s *Span) Number(key string, value int64) {
	if s != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
}

// Fail marks the span as failed.
func (s *Span) Fail() {
	if s != nil {
		s.span.SetStatus(codes.Error, "")
	}
}

// End ends the span at a time. It never blocks: a span that the collector is too slow for is dropped.
func (s *Span) End(at time.Time) {
	if s != nil {
		s.span.End(otrace.WithTimestamp(at))
	}
}
