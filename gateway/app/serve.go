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

	"reveille/gateway/httpapi"
	"reveille/gateway/keys"
	"reveille/gateway/pressure"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// ServeSettings are the flags of `gateway serve`.
type ServeSettings struct {
	config.Redis
	config.Log `embed:""`
	Front
	FairAfter time.Duration `help:"A model that may have several copies gets one more while more requests wait for a copy than it serves in this time." default:"2s"`
	Evict     string        `help:"Which idle model makes room where several could: lru, the least recently used; or cost, the one whose reload costs least (reload seconds x price of the host) and that is least likely needed." enum:"lru,cost" default:"lru"`
}

// Drivers makes the wake drivers of a gateway.
type Drivers map[catalog.Driver]power.Driver

// Serve runs a gateway until ctx ends, then drains it. ready, if not nil, hears the address once requests are accepted.
// Order of the end: unready, waiting requests are answered 503, the listener closes and open requests end within
// --shutdown-timeout, touches are flushed, leases are handed back.
func Serve(ctx context.Context, s ServeSettings, drivers Drivers, log *slog.Logger, ready func(addr string)) error {
	listen := func() (net.Listener, error) { return new(net.ListenConfig).Listen(ctx, "tcp", s.Addr) }
	return serve(ctx, s, listen, drivers, log, func(p parts) {
		if ready != nil {
			ready(p.addr)
		}
	})
}

// parts are what a gateway that serves is made of.
type parts struct {
	addr    string
	store   *state.Store
	mirror  *state.Mirror
	gate    *scheduling.Gate
	usage   *state.UsageReporter
	front   *httpapi.Server
	keys    *keys.Set
	watcher *catalog.Watcher // of the models file
}

// serve is Serve on a listener, which it closes.
func serve(ctx context.Context, s ServeSettings, listen func() (net.Listener, error), drivers Drivers, log *slog.Logger, ready func(parts)) error {
	p, err := s.parse()
	secret, err2 := config.Secret(s.RunnerSecret)
	file, warnings, err3 := catalog.Load(s.Models)
	evict, err4 := policy.ParseEviction(s.Evict)
	var err5 error
	if s.FairAfter < 0 {
		err5 = fmt.Errorf("--fair-after %v: want a duration above 0, such as 2s", s.FairAfter)
	}
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return err
	}
	for _, w := range warnings {
		log.Warn("models file", "warning", w.String())
	}
	inForce := func(c *catalog.Catalog) *catalog.Catalog {
		if _, run := drivers[catalog.DriverLocal]; run {
			return c.WithLocalHost()
		}
		return c
	}
	ln, err := listen()
	if err != nil {
		return err
	}
	defer ln.Close()
	store, err := state.Open(state.Options{URL: s.RedisURL, Pool: s.Pool, Secret: secret, Log: log})
	if err != nil {
		return err
	}
	defer store.Close()

	// 1. What is kept in memory: the catalogue, the mirror of the pool, the gate.
	models := newModels(inForce(file), store, p.register, log)
	signer := rpc.NewSigner(secret)
	var gate *scheduling.Gate
	var srv *httpapi.Server
	mirror := state.NewMirror(store, func(e state.Event) { gate.OnEvent(e); models.onEvent(e); srv.OnEvent(e) })
	power := power.NewSet(power.SetConfig{Catalog: models.get, Drivers: drivers, Log: log})
	gate = scheduling.New(scheduling.Config{
		Store: store, Mirror: mirror, Catalog: models.get, Gateway: signer.Gateway(), Hold: s.Hold, FairAfter: s.FairAfter, Evict: evict, MaxPerModel: s.MaxWaiting, Log: log,
		Waker: power, Stopper: power,
	})
	toucher := state.NewUsageReporter(store)
	pressure.Adopt(p.memory)
	gauge := pressure.New(p.memory, nil)
	srv = httpapi.New(httpapi.Config{
		Gate: gate, Store: store, Mirror: mirror, Usage: toucher, Catalog: models.get, Signer: signer, Keys: p.keys, Log: log, Version: config.Version(),
		Overlay: models.reloadRegistered, Withheld: models.withheld, Register: p.register, Browsers: p.browsers, Hold: s.Hold, CommitAfter: s.CommitAfter, Keepalive: s.Keepalive,
		MaxBody: p.maxBody, MaxHeldBytes: p.intake.MaxHeld, ReadTimeout: p.intake.ReadTimeout, MinRate: p.intake.MinRate,
		MaxConns: s.MaxConns, PerAddress: p.intake.PerAddress, Proxies: p.intake.Proxies, StreamErrors: s.StreamErrors == "event", FreeMetrics: s.FreeMetrics,
		Memory: gauge,
	})

	// 2. What runs behind the requests, until after the last of them.
	back, stopBack := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopBack()
	watcher := catalog.NewWatcher(s.Models, time.Second, file, func(c *catalog.Catalog, _ catalog.Changes, w catalog.Warnings) { models.setFile(inForce(c), w) }, func(err error) { log.Error("models file stays as it was", "error", err) })
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	wg.Go(func() { mirror.Run(back) })
	wg.Go(func() { toucher.Run(back) })
	wg.Go(func() { gauge.Run(back) })
	wg.Go(func() { models.run(back, func() string { return mirror.Snapshot().Catalog }) })
	wg.Go(func() { _ = watcher.Run(back) }) // ends with back
	wg.Go(func() { p.keys.Watch(back, 5*time.Second, log) })
	wg.Go(func() {
		for {
			select {
			case <-back.Done():
				return
			case <-hup:
				watcher.Reload()
			}
		}
	})
	gateCtx, stopGate := context.WithCancel(back)
	gateDone := make(chan struct{})
	go func() { defer close(gateDone); gate.Run(gateCtx) }()
	defer func() { stopGate(); <-gateDone }()

	// 3. The front.
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	log.Info("gateway listens", "addr", ln.Addr().String(), "models", len(file.Models))
	ready(parts{ln.Addr().String(), store, mirror, gate, toucher, srv, p.keys, watcher})
	select {
	case err := <-served:
		return fmt.Errorf("listener: %w", err)
	case <-ctx.Done():
	}

	// 4. The end, front first.
	log.Info("gateway drains")
	srv.Drain()
	stopGate()
	<-gateDone
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ShutdownTimeout)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		log.Warn("open requests were cut", "error", err)
	}
	return <-served
}
