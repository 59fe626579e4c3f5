// Package app builds a runner from its settings and runs it. The runner's main and the local host of `gateway run` both
// use it.
package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/google/renameio/v2"

	"reveille/infra/awssecret"
	"reveille/infra/config"
	"reveille/infra/logring"
	"reveille/infra/policy"
	"reveille/infra/redact"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/infra/trace"
	"reveille/runner/batch"
	"reveille/runner/conversations"
	"reveille/runner/devices"
	"reveille/runner/engine"
	"reveille/runner/host"
	"reveille/runner/httpapi"
	"reveille/runner/launch"
)

// ErrRunning: a runner of this host name already uses the state folder.
var ErrRunning = errors.New("another runner of this host is running; stop it, or use another --host or --state-dir")

// Run runs a runner until ctx ends, then drains it. ready, if not nil, is called with the address and the server once
// requests are accepted. A machine of a group first finds out which host it is. A second runner of the same host fails
// with ErrRunning before it changes anything. If Redis is unavailable, Run keeps trying to register. On a machine that
// is reclaimed the host drains before ctx ends. The order of the shutdown: no new requests, open ones finish or are
// cut, engines are stopped, the host is recorded as asleep, the listener closes.
func Run(ctx context.Context, s Settings, log *slog.Logger, ready func(addr string, srv *httpapi.Server)) error {
	ring := logring.New(0)
	log = logring.Tee(log, ring, s.RunnerSecret, redact.Password(s.RedisURL), s.HFToken)
	p, err := s.parse(log)
	if err != nil {
		return err
	}
	p.ring = ring
	if err := os.MkdirAll(s.StateDir, 0o700); err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	credentials := awssecret.FollowRedis(s.RedisSecret, log)
	store, err := state.Open(state.Options{URL: s.RedisURL, Credentials: credentials, Pool: s.Pool, Secret: p.secret, Log: log})
	if err != nil {
		return err
	}
	defer store.Close()
	if p.name, p.machine, err = slotOf(ctx, s.Slot, p.name, store, log); ctx.Err() != nil {
		return nil // stopped before it had a slot
	} else if err != nil {
		return err
	}
	log = log.With("host", p.name)

	unlock, err := Lock(filepath.Join(s.StateDir, "lock-"+p.name))
	if err != nil {
		return fmt.Errorf("host %s, state folder %s: %w", p.name, s.StateDir, err)
	}
	defer unlock()

	// 1. Processes that an earlier runner of this host left behind.
	marker, err := killLeftovers(ctx, filepath.Join(s.StateDir, "engines-"+p.name), log)
	if err != nil {
		return err
	}

	// 2. The listener, so that the registered address accepts connections.
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.RunnerAddr)
	if err != nil {
		return fmt.Errorf("--runner-addr: %w", err)
	}
	defer ln.Close()
	if err := store.CheckFormat(ctx); err != nil {
		return err
	}

	// 3. The host and its server. If Redis is unavailable, the host registers later.
	return runHost(ctx, s, p, marker, ln, store, credentials, log, ready)
}

// parse checks the settings and reports all mistakes together.
func (s Settings) parse(log *slog.Logger) (p parsed, err error) {
	p, err = s.HostSettings.parse()
	var secretErr, sleepErr, useErr, limitsErr, traceErr error
	p.secret, secretErr = config.Secret(s.RunnerSecret)
	p.sleep, sleepErr = sleepCommand(s.SleepCommand)
	p.inUse, useErr = s.useCheck()
	p.clientLimits, limitsErr = s.ClientLimits.Parse()
	p.tracer, traceErr = trace.New(s.Traces, "reveille-runner", config.Version(), p.name, log)
	return p, errors.Join(err, secretErr, sleepErr, useErr, limitsErr, traceErr, s.checkInstance())
}

// runHost creates a host with everything that its engines need, and its server on a listener, and runs them until ctx
// ends.
func runHost(ctx context.Context, s Settings, p parsed, marker *engine.Marker, ln net.Listener, store *state.Store, credentials *state.Credentials, log *slog.Logger, ready func(addr string, srv *httpapi.Server)) error {
	sb, err := newSandbox(s.HostSettings, p, log)
	if err != nil {
		return err
	}
	spawner := engine.NewSpawner(sb)
	defer spawner.Close()
	sockets, err := socketDir(filepath.Join(s.StateDir, "sockets-"+p.name))
	if err != nil {
		return err
	}
	defer os.RemoveAll(sockets)
	set := metrics.NewSet()
	media, endMedia, err := mediaCache(s, p, sockets, store, credentials, set, log)
	if err != nil {
		return err
	}
	defer endMedia()
	cache, endWeights, err := weightsCache(s, p.name, set, log)
	if err != nil {
		return err
	}
	defer endWeights()
	saved, endSaved := savedConversations(s, p, store, set, log)
	defer endSaved()
	launcher := &launch.Launcher{
		Spawner: spawner, Marker: marker, Finder: engine.Finder{Dirs: s.EnginesDir}, SocketDir: sockets, Log: log, Media: media,
		Meters: batch.NewMeters(set), Weights: cache, CallTimeout: httpapi.WholeResponseFactor * s.FirstByte,
		Conversations: saved,
	}
	m := newCloudMachine(s.InstanceSettings, log)
	defer m.close()
	fence := fenceFile(filepath.Join(s.StateDir, "fence-"+p.name))
	boot := rand.Text()
	hardware := detect(ctx, s.HostSettings, p, log)
	free := func(ctx context.Context, kinds policy.Devices) devices.Found {
		return freeMemory(ctx, kinds, s.HostSettings, p)
	}
	if p.margin < 0 {
		free = nil
	}
	addr := ln.Addr().String()
	ln, fingerprint, err := s.listenTLS(ln)
	if err != nil {
		return err
	}
	h := host.New(host.Config{
		Name: p.name, Machine: p.machine, Boot: boot, Addr: addr, TLS: fingerprint, Version: config.Version(), Sandbox: sb.Report(), Labels: p.labels, Limits: p.limits,
		Hardware: hardware, Detect: func(ctx context.Context) host.Hardware { return detect(ctx, s.HostSettings, p, log) },
		Free: free, Margin: p.margin, NPUSeats: p.seats, Options: p.options, Evict: policy.EvictionPolicy(s.Evict), Price: s.Price, FairAfter: s.FairAfter, DrainTimeout: s.DrainTimeout, RetireTimeout: s.RetireTimeout,
		Generation: fence.read(), OnRegister: func(g uint64) { fence.write(g, log); m.onRegister() },
		InUse: p.inUse, Store: store, Log: log, Forget: func(model string, at uint64) { saved.Forget(model, at) },
		Engines: launcher, Weights: launcher, Recipes: s.recipes,
	})
	srv := httpapi.New(httpapi.Config{
		Name: p.name, Host: h, Secret: p.secret, Log: log, Ring: p.ring, EngineLog: launcher.EngineLog, FirstByte: s.FirstByte, Metrics: set,
		Bodies:   relay.BodyReaderConfig{MaxBuffered: p.clientLimits.MaxHeld, ReadTimeout: p.clientLimits.ReadTimeout, MinRate: p.clientLimits.MinRate},
		Listener: relay.ListenerConfig{MaxConnsPerIP: p.clientLimits.PerAddress, Proxies: p.clientLimits.Proxies}, Conversations: saved, Tracer: p.tracer,
	})
	traced, endTraces := context.WithCancel(context.WithoutCancel(ctx)) // until after the last request
	var work sync.WaitGroup
	work.Go(func() { p.tracer.Run(traced) })
	defer work.Wait()
	defer endTraces()
	power := &sleeper{host: p.name, boot: boot, argv: p.sleep, mirror: h.Mirror(), fail: h.FailSleep, patience: sleepPatience, log: log}
	return serve(ctx, srv, ln, power, m, h, log, func() {
		log.Info("runner listens", "addr", addr, "devices", hardware.Devices.String(), "max_loaded_models", p.limits.String())
		if ready != nil {
			ready(addr, srv)
		}
	})
}

// listenTLS has a listener speak TLS, unless the settings say otherwise, and returns the fingerprint of its
// certificate, "" without TLS.
func (s Settings) listenTLS(ln net.Listener) (net.Listener, string, error) {
	local, ok := ln.Addr().(*net.TCPAddr)
	if s.RunnerTLS == "off" || s.RunnerTLS != "on" && ok && local.IP.IsLoopback() {
		return ln, "", nil
	}
	cert, fingerprint, err := rpc.NewCertificate()
	if err != nil {
		return nil, "", err
	}
	return tls.NewListener(ln, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		SessionTicketsDisabled: true, // a gateway takes bytes on an idle connection for its end
	}), fingerprint, nil
}

// savedConversations opens the folder of saved conversations. The runner also works without it, so an error is only
// logged. The store is nil after an error, or if conversations are not saved.
func savedConversations(s Settings, p parsed, pool *state.Store, set *metrics.Set, log *slog.Logger) (store *conversations.Store, end func()) {
	if p.conversations < 0 {
		return nil, func() {}
	}
	cfg := conversations.Config{
		Dir: filepath.Join(s.StateDir, "conversations-"+p.name), Bytes: p.conversations, Log: log, Metrics: set,
		Announce: func(model string, c state.Conversations) error {
			return pool.PutConversations(context.Background(), model, p.name, c) // the pool's store has a timeout
		},
	}
	store, err := conversations.Open(cfg)
	if err != nil {
		log.Warn("conversations will not be saved", "error", err)
		return nil, func() {}
	}
	return store, store.Close
}

// serve runs a host and its server until ctx ends, then stops them. listening is called once requests are accepted.
func serve(ctx context.Context, srv *httpapi.Server, ln net.Listener, power *sleeper, m *cloudMachine, h *host.Host, log *slog.Logger, listening func()) error {
	served := make(chan error, 1)
	run, stop := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop(nil)
	wg.Go(func() { power.run(run) })
	go func() {
		err := srv.Serve(ln)
		stop(err)
		served <- err
	}()
	listening()
	hostErr := m.run(run, h)

	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		log.Warn("open connections were closed", "error", err)
	}
	_ = ln.Close() // Shutdown misses it if Serve has only just been called
	return errors.Join(hostErr, <-served)
}

// killLeftovers kills the engine processes that an earlier runner with the same file left behind.
func killLeftovers(ctx context.Context, path string, log *slog.Logger) (marker *engine.Marker, err error) {
	if marker, err = engine.OpenMarker(path); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	killed, err := marker.KillLeftovers(ctx)
	if err != nil {
		return nil, fmt.Errorf("engines of an earlier runner: %w", err)
	}
	if len(killed) > 0 {
		log.Warn("killed engines of an earlier runner", "pids", killed)
	}
	return marker, nil
}

// fenceFile keeps the highest generation on disk, so that it rises even after Redis lost its data.
type fenceFile string

func (f fenceFile) read() uint64 {
	b, _ := os.ReadFile(string(f)) // missing at the first start
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n
}

func (f fenceFile) write(n uint64, log *slog.Logger) {
	if err := renameio.WriteFile(string(f), strconv.AppendUint(nil, n, 10), 0o600); err != nil {
		log.Warn("fencing token could not be written to disk", "error", err)
	}
}
