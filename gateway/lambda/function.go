package lambda

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
)

const (
	cutBefore  = 5 * time.Second // the end of an event's time: what is open then ends in order
	servedWait = 5 * time.Second // longest that the server may take between an answer's last byte and its end
)

// Gateway is the gateway behind a Function.
type Gateway interface {
	// Begin brings up to date what may have changed while nothing ran. It is called before each request and must be
	// bounded; whatever it cannot reach stays as it was.
	Begin(ctx context.Context)
	// Flush finishes what was begun behind requests. It is called after each, before its answer ends, and must be bounded.
	Flush()
	// Cut ends all open requests, each as its client understands. It is called shortly before Lambda ends the process.
	Cut()
}

// Function answers the events of a function URL. It is safe for concurrent use.
type Function struct {
	gateway   Gateway
	log       *slog.Logger
	transport *http.Transport
}

// New makes a function whose requests are accepted by l.
func New(l *Listener, g Gateway, log *slog.Logger) *Function {
	return &Function{gateway: g, log: log, transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx) },
		// A connection would not outlive the freeze in any order that could be relied on, and its end says that the server
		// is done.
		DisableKeepAlives: true, DisableCompression: true,
	}}
}

// Run answers events by the Runtime API until the process ends. It does not return.
func (f *Function) Run(ctx context.Context) {
	lambda.StartWithOptions(f.Handle, lambda.WithContext(ctx))
}

// Handle answers one event. The answer's body is streamed: it is read after Handle has returned, while ctx lasts. An error
// is the function's failure; every answer of the gateway, refusals too, is none.
func (f *Function) Handle(ctx context.Context, ev *events.LambdaFunctionURLRequest) (*events.LambdaFunctionURLStreamingResponse, error) {
	var conn *clientConn
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn, _ = i.Conn.(*clientConn) }})
	req, err := requestOf(traced, ev)
	if err != nil {
		return nil, err
	}
	f.gateway.Begin(ctx)
	x := &exchange{f: f}
	if deadline, ok := ctx.Deadline(); ok {
		x.cut = time.AfterFunc(time.Until(deadline)-cutBefore, func() {
			f.log.Warn("open requests are cut: the function's time is nearly over")
			f.gateway.Cut()
		})
	}
	resp, err := f.transport.RoundTrip(req)
	if err != nil {
		x.end()
		return nil, err
	}
	x.body, x.conn = resp.Body, conn
	out := preludeOf(resp)
	out.Body = x
	return out, nil
}

// brokenAnswer is the error of a truncated answer. Lambda counts errors by this name.
type brokenAnswer struct{ Cause error }

func (e *brokenAnswer) Error() string { return "the answer broke off: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *brokenAnswer) Unwrap() error { return e.Cause }

// exchange is one answer on its way out. It is read by one goroutine at a time.
type exchange struct {
	f    *Function
	body io.ReadCloser
	conn *clientConn
	cut  *time.Timer // nil: no end of time is known
	once sync.Once
	err  error // of the body, returned by the Read after the last bytes
}

// Read gives out the next bytes of the answer. Its last error comes when the gateway has done all that belongs to the
// request: io.EOF, or a *brokenAnswer.
func (x *exchange) Read(p []byte) (int, error) {
	if x.err != nil {
		return 0, x.err
	}
	n, err := x.body.Read(p)
	if err == nil {
		return n, nil
	}
	x.end()
	x.err = io.EOF
	if err != io.EOF {
		x.f.log.Warn("engine answer was cut off", "error", err)
		x.err = &brokenAnswer{err}
	}
	if n > 0 {
		return n, nil // bytes that come with an error would be lost
	}
	return 0, x.err
}

// Close ends the exchange, in the middle if need be: then the gateway sees its client leave.
func (x *exchange) Close() error {
	x.end()
	return nil
}

// end waits until the server is done with the request, and with what it began.
func (x *exchange) end() {
	x.once.Do(func() {
		if x.body != nil {
			_ = x.body.Close()
		}
		if x.conn != nil {
			select {
			case <-x.conn.served:
			case <-time.After(servedWait):
			}
		}
		if x.cut != nil {
			x.cut.Stop()
		}
		x.f.gateway.Flush()
	})
}
