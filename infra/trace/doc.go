// Package trace records what requests spend their time on, and sends it to an OpenTelemetry collector: OTLP over HTTP, in its
// JSON encoding. Trace contexts have W3C's form. ADR 3 says why it is not OpenTelemetry's SDK.
//
// A nil *Tracer records nothing, and so does a nil *Span, which it begins: with traces off, a request costs a comparison with
// nil for each span.
package trace
