// Package app wires a gateway: the front alone (Serve), or everything on one machine (Run).
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"reveille/gateway/accesslog"
	"reveille/gateway/httpapi"
	"reveille/gateway/ui"
	"reveille/infra/awssecret"
	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/logring"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/redact"
	"reveille/infra/state"
	"reveille/infra/trace"
)

// ServeSettings are the flags of `gateway serve`.
type ServeSettings struct {
	config.Redis
	config.Log
	GatewayFlags
	FairAfter time.Duration `help:"A model that may have several copies gets further ones while more requests wait for a copy than it serves in this time; and on a host, how long a busy model that must make room still takes new requests." default:"2s"`
	Evict     string        `help:"Which idle model makes room where several could: lru, the least recently used; or cost, the one whose reload costs least (reload seconds x price of the host) and that is least likely needed." enum:"lru,cost" default:"lru"`

	// near, if not nil, finds runners of this process; see [httpapi.Config].
	near func(host, addr string) httpapi.LocalRunner

	// ring, if not nil, has what the logger logs.
	ring *logring.Ring

	// complete, if not nil, adds what this program knows of the pool besides the models file.
	complete func(*catalog.Catalog) (*catalog.Catalog, error)
}

// completed is a models file's catalog with what this program knows besides it.
func (s ServeSettings) completed(c *catalog.Catalog) (*catalog.Catalog, error) {
	if s.complete == nil {
		return c, nil
	}
	return s.complete(c)
}

// parse checks the settings, logs the warnings of the models file, and reports all mistakes in one go.
func (s ServeSettings) parse(log *slog.Logger) (parsed, error) {
	p, err := s.GatewayFlags.parse()
	errs := []error{err}
	p.secret, err = config.Secret(s.RunnerSecret)
	errs = append(errs, err)
	if err == nil {
		p.sessions, err = ui.NewSessions(p.secret, s.Pool)
		errs = append(errs, err)
	}
	var warnings catalog.Problems
	p.file, warnings, err = catalog.Load(s.Models)
	if err == nil {
		p.file, err = s.completed(p.file)
	}
	errs = append(errs, err)
	p.evict, err = policy.ParseEvictionPolicy(s.Evict)
	errs = append(errs, err)
	p.tracer, err = trace.New(s.Traces, "reveille-gateway", config.Version(), "", log)
	errs = append(errs, err)
	if s.FairAfter < 0 {
		errs = append(errs, fmt.Errorf("--fair-after %v: want a duration above 0, such as 2s", s.FairAfter))
	}
	if err := errors.Join(errs...); err != nil {
		return p, err
	}
	for _, w := range warnings {
		log.Warn("warning in the models file", "warning", w.String())
	}
	return p, nil
}

// keepLog returns a logger that also writes to the ring, without the gateway's secrets.
func (s ServeSettings) keepLog(log *slog.Logger, ring *logring.Ring) *slog.Logger {
	return logring.Tee(log, ring, s.RunnerSecret, s.AdminKey, s.localKey, redact.Password(s.RedisURL))
}

// Drivers makes the wake drivers of a gateway.
type Drivers map[catalog.Driver]power.Driver

// Serve runs a gateway until ctx ends, then drains it. ready, if not nil, is called with the address once requests are
// accepted. Order of the end: unready, waiting requests are answered 503 and leases handed back, the listener closes
// and open requests end within --shutdown-timeout, counters are flushed.
func Serve(ctx context.Context, s ServeSettings, drivers Drivers, log *slog.Logger, ready func(addr string)) error {
	ring := s.ring
	if ring == nil {
		ring = logring.New(0)
		log = s.keepLog(log, ring)
	}
	p, err := s.parse(log)
	if err != nil {
		return err
	}
	p.ring = ring
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Addr)
	if err != nil {
		return err
	}
	defer ln.Close()
	addr := ln.Addr().String()
	if ln, err = s.listenTLS(ln, log); err != nil {
		return err
	}
	access, endAccess, err := accesslog.Open(s.AccessLog)
	if err != nil {
		return fmt.Errorf("--access-log: %w", err)
	}
	defer endAccess()
	credentials := awssecret.FollowRedis(s.RedisSecret, log)
	store, err := state.Open(state.Options{URL: s.RedisURL, Credentials: credentials, Pool: s.Pool, Secret: p.secret, Log: log})
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.CheckFormat(ctx); err != nil {
		return err
	}
	g := assemble(s, p, store, drivers, access, log)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	// What runs behind the requests, until after the last of them.
	back := context.WithoutCancel(ctx)
	stopBack := background(back, g.mirror.Run, g.usage.Run, g.gauge.Run, g.watcher.Run, g.tracer.Run,
		func(ctx context.Context) { g.models.run(ctx, func() string { return g.mirror.Snapshot().Catalog }) },
		func(ctx context.Context) { g.keys.Watch(ctx, 5*time.Second, log) },
		func(ctx context.Context) { reload(ctx, hup, g.watcher) })
	defer stopBack()
	stopGate := background(back, g.gate.Run)
	defer stopGate()

	served := make(chan error, 1)
	go func() { served <- g.front.Serve(ln) }()
	log.Info("gateway listens", "addr", addr, "models", len(p.file.Models))
	if ready != nil {
		ready(addr)
	}
	select {
	case err := <-served:
		return fmt.Errorf("listener: %w", err)
	case <-ctx.Done():
	}

	// The end, front first.
	g.front.Drain()
	log.Info("gateway drains", "open_requests", g.front.Open(), "at_most", s.ShutdownTimeout, "hint", "a second Ctrl-C or SIGTERM ends it at once")
	stopGate()
	end, cancel := context.WithTimeout(back, s.ShutdownTimeout)
	defer cancel()
	if err := g.front.Shutdown(end); err != nil {
		log.Warn("open requests were cut", "error", err)
	}
	_ = ln.Close() // Shutdown does not know of it if Serve has only just been called
	return <-served
}

// background runs functions until stop is called, which waits for the end of each. stop can be called again.
func background(ctx context.Context, run ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, f := range run {
		wg.Go(func() { f(ctx) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// reload has the models file read at each signal until ctx ends.
func reload(ctx context.Context, hup <-chan os.Signal, watcher *catalog.Watcher) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			watcher.Reload()
		}
	}
}
