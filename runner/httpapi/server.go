package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"reveille/infra/logring"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/trace"
	"reveille/runner/conversations"
	"reveille/runner/host"
)

// DefaultFirstByte is the timeout for the first byte of a streamed response to a short prompt.
const DefaultFirstByte = 120 * time.Second

// Config configures a Server. Name, Host, Secret and Log are required.
type Config struct {
	Name      string // the host's
	Host      *host.Host
	Secret    []byte // the pool's runner secret
	Log       *slog.Logger
	FirstByte time.Duration // timeout for the first byte of a stream; default 120 s, see firstByteLimit
	Metrics   *metrics.Set  // receives the metrics; default: a new set
	Bodies    relay.BodyReaderConfig
	Listener  relay.ListenerConfig

	Ring          *logring.Ring                    // the runner's own log; nil: an empty one
	EngineLog     func(model string) *logring.Ring // of a model's last engine; nil: none is kept
	Tracer        *trace.Tracer                    // receives the spans of requests that their gateways trace; nil: none are recorded
	Conversations *conversations.Store             // nil: none are saved
}

// Server serves gateways' requests. Create it with New.
type Server struct {
	cfg      Config
	verify   *rpc.Verifier
	watcher  *relay.Watcher
	watchdog *watchdog
	bodies   *relay.BodyReader
	http     *fasthttp.Server
	set      *metrics.Set
	m        meters
}

// New returns a server.
func New(cfg Config) *Server {
	cfg.FirstByte = cmp.Or(max(cfg.FirstByte, 0), DefaultFirstByte)
	cfg.Metrics = cmp.Or(cfg.Metrics, metrics.NewSet())
	if cfg.Ring == nil {
		cfg.Ring = logring.New(0)
	}
	if cfg.EngineLog == nil {
		cfg.EngineLog = func(string) *logring.Ring { return nil }
	}
	s := &Server{cfg: cfg, verify: rpc.NewVerifier(cfg.Secret), watcher: relay.NewWatcher(0), bodies: relay.NewBodyReader(cfg.Bodies), set: cfg.Metrics}
	s.m = newMeters(s.set, cfg.Host)
	s.watchdog = newWatchdog(cfg.Host, cfg.Log, &s.m, cfg.FirstByte)
	s.http = &fasthttp.Server{
		Handler: s.guard, ErrorHandler: s.handleHeaderError, Name: "reveille-runner", NoDefaultServerHeader: true, NoDefaultContentType: true,
		IdleTimeout: 90 * time.Second, ReadBufferSize: 16 << 10, SecureErrorLogMessage: true, Logger: relay.HTTPLogger{Log: cfg.Log}, CloseOnShutdown: true,
	}
	s.bodies.Configure(s.http)
	return s
}

// Serve accepts connections until Shutdown. The listener is closed then.
func (s *Server) Serve(ln net.Listener) error {
	cfg := s.cfg.Listener
	if cfg.Refusal == nil {
		body := errorBody(rpc.CodeOverloaded, "Too many connections are open.")
		cfg.Refusal = fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n%s: overloaded\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
			rpc.HeaderCode, len(body), body)
	}
	return s.http.Serve(relay.NewListener(ln, cfg))
}

// Shutdown stops accepting, and waits for open requests until ctx ends. Requests that follow the runner's log end
// immediately.
func (s *Server) Shutdown(ctx context.Context) error {
	s.cfg.Ring.Close()
	err := s.http.ShutdownWithContext(ctx)
	s.watchdog.close()
	return err
}

// guard prevents a panic in one request from ending the runner, and with it every engine.
func (s *Server) guard(ctx *fasthttp.RequestCtx) {
	defer s.bodies.Finish(ctx)
	defer func() {
		if p := recover(); p != nil {
			ctx.Response.Reset()
			ctx.SetConnectionClose()
			s.panicked(p).send(ctx)
		}
	}()
	s.handle(ctx)
}

// panicked logs a panic and returns the request's reply. Call it in the deferred function that recovered.
func (s *Server) panicked(p any) *reply {
	s.cfg.Log.Error("request handler panicked", "panic", p, "stack", string(debug.Stack()))
	return failure(fasthttp.StatusInternalServerError, rpc.CodeInternalError, "Internal error in the runner.")
}

// handleHeaderError responds to a request whose header could not be read.
func (s *Server) handleHeaderError(ctx *fasthttp.RequestCtx, err error) {
	relay.Linger(ctx.Conn())
	var small *fasthttp.ErrSmallBuffer
	var ne net.Error
	switch {
	case errors.As(err, &small):
		s.fail(ctx, fasthttp.StatusRequestHeaderFieldsTooLarge, rpc.CodeInvalidRequest, "The request's header is too large.")
	case errors.As(err, &ne) && ne.Timeout():
		s.fail(ctx, fasthttp.StatusRequestTimeout, rpc.CodeInvalidRequest, "Timed out while reading the request.")
	default:
		s.fail(ctx, fasthttp.StatusBadRequest, rpc.CodeInvalidRequest, "The request could not be read.")
	}
	ctx.SetConnectionClose()
}

// bodyError returns the reply to a request whose body could not be read.
func bodyError(err error) *reply {
	switch {
	case errors.Is(err, relay.ErrBodyTooLarge):
		return failure(fasthttp.StatusRequestEntityTooLarge, rpc.CodeRequestTooLarge, "The request's body is too large.")
	case errors.Is(err, relay.ErrBuffersFull):
		return failure(fasthttp.StatusServiceUnavailable, rpc.CodeOverloaded, "The model's host buffers too many request bodies. Retry the request.")
	case errors.Is(err, relay.ErrBodySlow):
		return failure(fasthttp.StatusRequestTimeout, rpc.CodeInvalidRequest, "Timed out while reading the request.")
	}
	return failure(fasthttp.StatusBadRequest, rpc.CodeInvalidRequest, "The body is shorter than its Content-Length.")
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	if relay.SmugglingCheck(ctx) {
		s.fail(ctx, fasthttp.StatusBadRequest, rpc.CodeInvalidRequest, "Content-Length and Transfer-Encoding together are refused.")
		return
	}
	if ctx.Request.Header.ContentLength() == -1 {
		s.fail(ctx, fasthttp.StatusLengthRequired, rpc.CodeInvalidRequest, "Chunked bodies are refused; send a Content-Length.")
		ctx.SetConnectionClose()
		return
	}
	if model := ctx.Request.Header.Peek(rpc.HeaderModel); len(model) > 0 {
		s.infer(ctx, string(model))
		return
	}
	path := string(ctx.Path())
	if path == rpc.PathHealth { // without a signature, as are metrics for this machine
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"status":"ok"}`)
		return
	}
	if path != rpc.PathMetrics || !ctx.RemoteIP().IsLoopback() || !isLoopbackHost(ctx.Host()) {
		if _, ok := s.authorize(ctx, ""); !ok {
			return
		}
	}
	switch {
	case path == rpc.PathMetrics:
		ctx.SetContentType("text/plain; version=0.0.4")
		metrics.ExposeMetadata(true) // the lines TYPE
		s.set.WritePrometheus(ctx)
	case path == rpc.PathHost:
		s.sendJSON(ctx, s.cfg.Host.View())
	case path == rpc.PathLog:
		s.sendLog(ctx, s.cfg.Ring)
	case len(path) > len(rpc.PathLogs) && path[:len(rpc.PathLogs)] == rpc.PathLogs:
		s.handleEngineLog(ctx, path[len(rpc.PathLogs):])
	case path == rpc.PathSendBack:
		s.handleSendBack(ctx)
	case path == rpc.PathSavedConversations:
		s.handleConversations(ctx)
	default:
		s.fail(ctx, fasthttp.StatusNotFound, "unknown_url", "Unknown path.")
	}
}

// authorize checks the request's signature and returns the gateway's name. If ok is false, it has sent the response.
func (s *Server) authorize(ctx *fasthttp.RequestCtx, model string) (gateway string, ok bool) {
	now := time.Now()
	gateway, err := s.verify.Verify(string(ctx.Request.Header.Peek(rpc.HeaderAuth)), rpc.Call{
		Method: string(ctx.Method()), Path: string(ctx.RequestURI()), Host: s.cfg.Name, Model: model,
		CacheTenant: string(ctx.Request.Header.Peek(rpc.HeaderCacheTenant)),
		Length:      max(ctx.Request.Header.ContentLength(), 0),
	}, now)
	if err == nil {
		return gateway, true
	}
	s.m.refusedAuth.Inc()
	reason := rpc.RefusedAuth
	switch {
	case errors.Is(err, rpc.ErrTime):
		ctx.Response.Header.Set(rpc.HeaderTime, strconv.FormatInt(now.UnixMilli(), 10))
	case errors.Is(err, rpc.ErrHost):
		reason = rpc.RefusedHost
	}
	s.refuse(ctx, reason)
	return "", false
}

// refuse responds that no engine saw the request.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, reason string) { refusal(reason).send(ctx) }

// fail responds with one of the runner's own errors.
func (s *Server) fail(ctx *fasthttp.RequestCtx, status int, code, message string) {
	failure(status, code, message).send(ctx)
}

// isLoopbackHost reports whether a Host header names this machine by a loopback address or localhost. A web page whose
// DNS name resolves to this machine sends its own name.
func isLoopbackHost(host []byte) bool {
	name := string(host)
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	ip, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && ip.IsLoopback() || name == "localhost"
}
