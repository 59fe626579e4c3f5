package app

import (
	"log/slog"
	"time"

	"reveille/gateway/accesslog"
	"reveille/gateway/costs"
	"reveille/gateway/httpapi"
	"reveille/gateway/keys"
	"reveille/gateway/models"
	"reveille/gateway/pressure"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/power"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/infra/trace"
)

// parts is what assemble connects.
type parts struct {
	store   *state.Store
	models  *liveCatalog
	mirror  *state.Mirror
	gate    *scheduling.Gate
	usage   *state.UsageReporter
	gauge   *pressure.Gauge
	front   *httpapi.Server
	keys    *keys.Set
	watcher *catalog.Watcher // of the models file
	tracer  *trace.Tracer    // nil: no traces
}

// assemble makes the parts and starts none of them.
func assemble(s ServeSettings, p parsed, store *state.Store, drivers Drivers, access *accesslog.Log, log *slog.Logger) *parts {
	g := &parts{tracer: p.tracer, store: store, models: newLiveCatalog(p.file, store, p.register, log), usage: state.NewUsageReporter(store), keys: p.keys}
	p.keys.JoinPool(g.usage)
	p.keys.SetCloud(func(id string) bool {
		m, known := g.models.get().Model(id)
		return known && m.Cloud
	})
	g.mirror = state.NewMirror(store, func(e state.Event) { g.gate.OnEvent(e); g.models.onEvent(e); g.front.OnEvent(e) })
	refuse := func(err error) { log.Error("models file is invalid; keeping the previous one", "error", err) }
	g.watcher = catalog.NewWatcher(s.Models, time.Second, p.file, func(c *catalog.Catalog, w catalog.Problems) {
		c, err := s.completed(c)
		if err != nil {
			refuse(err)
			return
		}
		g.models.setFile(c, w)
	}, refuse)
	signer := rpc.NewSigner(p.secret)
	runners := models.NewRunners(signer, g.mirror.Snapshot)
	days := costs.NewReader(store)
	hosts := power.NewSet(power.SetConfig{Catalog: g.models.get, Drivers: drivers, Address: store.HostAddress, Pool: store, Log: log})
	g.gate = scheduling.New(scheduling.Config{
		Store: store, Mirror: g.mirror, Catalog: g.models.get, Gateway: signer.Gateway(), Hold: s.Hold, FairAfter: s.FairAfter, Evict: p.evict, MaxPerModel: s.MaxWaiting, Log: log,
		Waker: hosts, Stopper: hosts, AwakeToday: days.AwakeToday, SendBack: runners.SendBack,
	})
	pressure.ApplyToRuntime(p.memory)
	g.gauge = pressure.New(p.memory, nil)
	g.front = httpapi.New(httpapi.Config{
		Gate: g.gate, Costs: days, Store: store, Mirror: g.mirror, Usage: g.usage, Catalog: g.models.get, Signer: signer, Runners: runners, Keys: p.keys, Log: log, Version: config.Version(),
		Overlay: g.models.reloadRegistered, Withheld: g.models.withheld, Register: p.register, Browsers: p.browsers, Hold: s.Hold, HoldWhole: s.HoldWhole, CommitAfter: s.CommitAfter, Keepalive: s.Keepalive,
		MaxBody: p.maxBody, MaxBufferedBytes: p.limits.MaxHeld, ReadTimeout: p.limits.ReadTimeout, MinRate: p.limits.MinRate,
		MaxConns: s.MaxConns, PerAddress: p.limits.PerAddress, Proxies: p.limits.Proxies, StreamErrors: s.StreamErrors == "event", LoadingReasoning: s.Loading == "reasoning", FreeMetrics: s.FreeMetrics, ResponseRetention: s.StoreResponses, BatchDir: s.BatchDir, BatchBytes: p.batches,
		Ring: p.ring, AccessLog: access, Tracer: p.tracer, Memory: g.gauge, Sessions: p.sessions, Evict: p.evict, LocalRunner: s.near,
	})
	return g
}
