// Package trace records what requests spend their time on, with OpenTelemetry's SDK, and sends it to a collector by
// OTLP over HTTP. Trace contexts have W3C's form.
//
// A nil *Tracer records nothing, and so does a nil *Span, which it starts: with traces off, a request costs a
// comparison with nil for each span.
package trace
