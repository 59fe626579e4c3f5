package httpapi

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"

	"reveille/gateway/accesslog"
	"reveille/gateway/api"
	"reveille/gateway/batches"
	"reveille/gateway/costs"
	"reveille/gateway/keys"
	"reveille/gateway/manage"
	"reveille/gateway/models"
	"reveille/gateway/pressure"
	"reveille/gateway/quota"
	"reveille/gateway/scheduling"
	"reveille/gateway/ui"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/logring"
	"reveille/infra/policy"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/infra/trace"
)

// Config configures a Server. Gate, Store, Mirror, Usage, Catalog, Signer, Runners, Keys and Sessions are required.
type Config struct {
	Gate    *scheduling.Gate
	Costs   *costs.Reader // run by the server; default: a new one
	Store   *state.Store
	Mirror  *state.Mirror
	Usage   *state.UsageReporter
	Catalog func() *catalog.Catalog
	Signer  *rpc.Signer
	Runners *models.Runners // with the same signer; closed by the server
	Keys    *keys.Set
	Log     *slog.Logger

	Sessions *ui.Sessions
	Evict    policy.EvictionPolicy // how victims are chosen, as the page shows it

	// Overlay applies the models registered at run time to the catalog again.
	Overlay func(context.Context) error
	// Withheld returns why a registered model is not served, "" if it is served or not registered; nil: all are served.
	Withheld func(id string) string
	Register catalog.RegisterList // where the weights of models that clients register can be stored; empty: nowhere

	Version           string
	LocalRunner       func(host, addr string) LocalRunner // returns the runner of a host if it is in this process, else nil; may be nil
	Browsers          *api.Browsers                       // which web pages and host names are served; default: those of a gateway without keys
	Hold              time.Duration                       // maximum wait of a request for a cold model; default 300 s
	HoldWhole         time.Duration                       // the same for a request without a stream; default Hold
	CommitAfter       time.Duration                       // a stream gets its status and the first comment after this time; default 5 s
	Keepalive         time.Duration                       // between comments; default 5 s
	FirstByte         time.Duration                       // timeout for the head of a runner's response, and for silence within it; default 30 min
	MaxBody           int                                 // bytes; default 64 MiB
	MaxBufferedBytes  int64                               // bytes of all bodies that arrive, wait or are being sent; above, requests get overloaded; default 1 GiB
	MaxConns          int                                 // open client connections, 0 for no limit
	PerAddress        int                                 // the same from one address, 0 for no limit
	Proxies           []netip.Prefix                      // addresses exempt from PerAddress
	ReadTimeout       time.Duration                       // of a head, and of pauses in a body; default 30 s
	MinRate           int                                 // bytes a second of a body, see relay.BodyReaderConfig; default 64 KiB
	LoadingReasoning  bool                                // a waiting stream of chat completions shows the load as reasoning
	StreamErrors      bool                                // a request for a stream gets its errors as an event, with status 200
	FreeMetrics       bool                                // /metrics needs no key
	ResponseRetention time.Duration                       // how long responses are stored that clients want stored; 0: they are not
	Ring              *logring.Ring                       // this gateway's own log, for managers; default: an empty one
	AccessLog         *accesslog.Log                      // gets a line for each request; nil: none is written
	Tracer            *trace.Tracer                       // gets the spans of requests to models; nil: none are recorded
	BatchDir          string                              // the folder of files and batches; "": there are none
	BatchBytes        int64                               // maximum size of that folder
	Memory            *pressure.Gauge                     // near its limit, connections are not kept and new requests are refused; nil: no limit
}

func (c Config) withDefaults() Config {
	if c.Ring == nil {
		c.Ring = logring.New(0)
	}
	c.Hold = cmp.Or(max(c.Hold, 0), 300*time.Second)
	c.HoldWhole = min(cmp.Or(max(c.HoldWhole, 0), c.Hold), c.Hold)
	c.CommitAfter = cmp.Or(max(c.CommitAfter, 0), 5*time.Second)
	c.Keepalive = cmp.Or(max(c.Keepalive, 0), 5*time.Second)
	c.FirstByte = cmp.Or(max(c.FirstByte, 0), 30*time.Minute)
	c.MaxBody = cmp.Or(max(c.MaxBody, 0), 64<<20)
	c.MaxBufferedBytes = cmp.Or(max(c.MaxBufferedBytes, 0), 1<<30)
	if c.Browsers == nil {
		c.Browsers, _ = api.NewBrowsers(nil, nil, true) // fails only because of its lists
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// Server is the gateway's HTTP server. Make it with New.
type Server struct {
	cfg        Config
	log        *slog.Logger
	http       *fasthttp.Server
	watcher    *relay.Watcher
	routes     []route // the package's, except in tests
	draining   atomic.Bool
	bodies     *relay.BodyReader
	inflight   sync.Map // of *exchange, which the server cuts when it ends
	refusalLog *rate.Limiter
	set        *metrics.Set
	m          meters
	registry   *models.Registry
	manage     *manage.Service
	web        web.Server
	hub        *ui.Hub
	history    *ui.History
	costs      *costs.Reader
	batches    *batches.Service // nil without BatchDir

	crashes quota.Crashes

	lifetime    context.Context // ends when Shutdown starts: for work that would not end otherwise
	endLifetime context.CancelFunc
	background  sync.WaitGroup
}

// New makes a server.
func New(cfg Config) *Server {
	cfg = cfg.withDefaults()
	s := &Server{
		cfg: cfg, log: cfg.Log, watcher: relay.NewWatcher(0), set: metrics.NewSet(), refusalLog: rate.NewLimiter(refusalLines, refusalLines),

		bodies: relay.NewBodyReader(relay.BodyReaderConfig{MaxBody: cfg.MaxBody, MaxBuffered: cfg.MaxBufferedBytes, ReadTimeout: cfg.ReadTimeout, MinRate: cfg.MinRate}),
	}
	s.lifetime, s.endLifetime = context.WithCancel(context.Background())
	s.registry = models.New(models.Config{
		Gate: cfg.Gate, Store: cfg.Store, Mirror: cfg.Mirror, Catalog: cfg.Catalog, Runners: cfg.Runners, Withheld: cfg.Withheld,
	})
	s.registry.Tables.OnKeys = func(table map[string]string) {
		if err := cfg.Keys.SetStored(table); err != nil {
			s.log.Error("API keys in Redis are invalid", "error", err)
		}
	}
	s.manage = manage.New(manage.Config{
		Models: s.registry, Gate: cfg.Gate, Store: cfg.Store, Mirror: cfg.Mirror, Usage: cfg.Usage, Catalog: cfg.Catalog,
		Keys: cfg.Keys, Overlay: cfg.Overlay, Register: cfg.Register,
		Version: cfg.Version, Keepalive: cfg.Keepalive, Draining: s.draining.Load, Ring: cfg.Ring, Lifetime: s.lifetime,
	})
	s.routes, s.batches = routes, s.newBatches()
	s.hub, s.history, s.costs = s.newHub(), ui.NewHistory(time.Now()), cmp.Or(cfg.Costs, costs.NewReader(cfg.Store))
	s.set.NewGauge("reveille_gateway_access_log_dropped_total", func() float64 { return float64(cfg.AccessLog.Dropped()) })
	s.set.NewGauge("reveille_gateway_requests_open", func() float64 { return float64(s.Open()) })
	s.m = newMeters(s.set, cfg.Gate, cfg.Mirror, cfg.Memory)
	s.web = web.Server{Watcher: s.watcher, CountResponse: s.m.countResponse, LocalAdmin: s.localAdmin, OnPanic: s.panicked}
	s.http = &fasthttp.Server{
		Handler: s.handle, ErrorHandler: s.badRequest, HeaderReceived: s.headerReceived, ExpectHandler: s.expectContinue,
		NoDefaultServerHeader: true, NoDefaultContentType: true, IdleTimeout: 60 * time.Second, ReadBufferSize: 16 << 10,
		SecureErrorLogMessage: true, Logger: relay.HTTPLogger{Log: cfg.Log}, CloseOnShutdown: true,
	}
	s.bodies.Configure(s.http)
	return s
}

// Serve accepts connections until Shutdown. Call it once.
func (s *Server) Serve(ln net.Listener) error {
	s.background.Go(func() { s.registry.Tables.Run(s.lifetime) })
	s.background.Go(s.watchHosts)
	s.background.Go(func() { s.costs.Run(s.lifetime) })
	if s.batches != nil {
		s.background.Go(func() { s.batches.Run(s.lifetime) })
	}
	return s.http.Serve(relay.NewListener(ln, relay.ListenerConfig{
		MaxConns: s.cfg.MaxConns, MaxConnsPerIP: s.cfg.PerAddress, Proxies: s.cfg.Proxies, Refusal: tooManyConns(),
	}))
}

// Drain makes the server unready: /ready and new inference requests get 503. Open requests continue.
func (s *Server) Drain() { s.draining.Store(true) }

// Open returns the number of open inference requests.
func (s *Server) Open() (n int) {
	s.inflight.Range(func(any, any) bool { n++; return true })
	return n
}

// cutAll ends the open inference requests.
func (s *Server) cutAll() {
	s.inflight.Range(func(x, _ any) bool { x.(*exchange).abandon(api.ShuttingDown()); return true })
}

// shutdownMargin is how long cut requests may take to send their clients the reason.
const shutdownMargin = 2 * time.Second

// Shutdown stops accepting and waits for open requests until ctx ends. Those still open then are cut: streams with an
// error event, and the error is ctx's.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.endLifetime()
	err := s.http.ShutdownWithContext(ctx) // which does not wait for WebSockets
	if ctx.Err() != nil && err != nil {
		s.cutAll()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownMargin)
		_ = s.http.ShutdownWithContext(last) // it reports that the listener is closed, which it already is
		cancel()
	}
	s.cutAll() // WebSockets; others have ended
	s.background.Wait()
	s.hub.Wait()
	s.registry.Close()
	return err
}

// OnEvent processes an event of the pool; pass it the mirror's events. It never blocks.
func (s *Server) OnEvent(e state.Event) {
	s.history.OnEvent(time.Now(), e)
	s.registry.OnEvent(e)
}
