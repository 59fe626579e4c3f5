package trace

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	otrace "go.opentelemetry.io/otel/trace"
)

// Bounds of what is kept and sent.
const (
	queueSize   = 4096             // spans that wait; more are dropped
	exportEvery = time.Second      // longest that a span waits for others
	timeout     = 10 * time.Second // of a request
	flush       = 2 * time.Second  // longest that Run sends after its context has ended
	maxText     = 256              // bytes of an attribute
)

// Tracer sends spans to a collector. Make it with New and run it with Run. It is safe for concurrent use.
type Tracer struct {
	provider *sdk.TracerProvider
	spans    otrace.Tracer
}

// New makes a tracer of a service that posts to a collector: http://collector:4318, or with a path if it is not OTLP's
// own, /v1/traces. It returns nil, which records nothing, for an empty address.
func New(address, service, version, instance string, log *slog.Logger) (*Tracer, error) {
	if address == "" {
		return nil, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, errors.New("--traces: want the URL of an OpenTelemetry collector, such as http://127.0.0.1:4318, without a password")
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(u.String()),
		otlptracehttp.WithEncoding(otlptracehttp.EncodingJSON),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}), // spans are not worth their memory while a collector is away
		otlptracehttp.WithHTTPClient(&http.Client{
			Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}))
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("could not send traces", "error", err) }))
	about := []attribute.KeyValue{attribute.String("service.name", service), attribute.String("service.version", version)}
	if instance != "" {
		about = append(about, attribute.String("service.instance.id", instance))
	}
	limits := sdk.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxText
	provider := sdk.NewTracerProvider(sdk.WithResource(resource.NewSchemaless(about...)), sdk.WithRawSpanLimits(limits),
		sdk.WithSampler(sdk.AlwaysSample()), // Start and Continue choose
		sdk.WithBatcher(exporter, sdk.WithMaxQueueSize(queueSize), sdk.WithBatchTimeout(exportEvery), sdk.WithExportTimeout(timeout)))
	return &Tracer{provider, provider.Tracer("reveille")}, nil
}

// Run waits until ctx ends and then sends for a short while what is left. A nil Tracer returns immediately.
func (t *Tracer) Run(ctx context.Context) {
	if t == nil {
		return
	}
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), flush)
	defer cancel()
	_ = t.provider.Shutdown(end) // the handler of errors has logged it
}
