package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"reveille/gateway/cli"
	"reveille/gateway/httpapi"
	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/logring"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/power/drivers"
	"reveille/infra/power/local"
	"reveille/infra/state"
	runner "reveille/runner/app"
	runnerhost "reveille/runner/host"
	runnerapi "reveille/runner/httpapi"
	warmer "reveille/warmer/app"
)

// RunSettings are the flags of `gateway run`: the gateway's, the runner's and the warmer's.
type RunSettings struct {
	RedisURL string `help:"Redis to use instead of the embedded one."`
	Pool     string `help:"Name of the deployment; all its keys carry it as {NAME}." default:"main"`
	config.Log
	GatewayFlags
	runner.HostSettings
	warmer.Sweep
	Evict string `help:"Which idle model makes room where several could: lru, the least recently used; or cost, the one whose reload costs least (reload seconds x price of the host) and that is least likely needed." enum:"lru,cost" default:"lru"`
}

// Run runs everything on one machine until ctx ends: an embedded Redis unless one is named, the gateway, a warmer, and
// a runner for each host of the models file with the driver local, all in this process (infra/adr/0006-gateway-run.md).
func Run(ctx context.Context, s RunSettings, log *slog.Logger, out io.Writer) error {
	if err := s.HostSettings.Check(); err != nil {
		return err
	}
	if err := s.checkHost(); err != nil {
		return err
	}
	unlock, err := s.lockState()
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.keepSecrets(); err != nil {
		return err
	}
	embedded, closeRedis, err := s.embedRedis()
	if err != nil {
		return err
	}
	defer closeRedis()
	if err := s.checkTwin(ctx); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	serve := ServeSettings{Redis: config.Redis{RedisURL: s.RedisURL, Pool: s.Pool}, Log: s.Log, GatewayFlags: s.GatewayFlags, FairAfter: s.FairAfter, Evict: s.Evict, complete: s.withLocalHost}
	serve.ring = logring.New(0)
	runnerLog := log // each runner keeps its own
	log = serve.keepLog(log, serve.ring)
	back, stop := context.WithCancel(ctx)
	var near sync.Map // the runners of this process by host and address
	var served atomic.Bool
	var hosts *local.Driver
	keep := newKeeper(func(ctx context.Context, host string) error { return s.wakeLocal(ctx, hosts, host) }, log)
	hosts = local.New(local.Config{
		Run: func(ctx context.Context, h catalog.Host) error {
			settings, err := s.runner(h)
			if err != nil {
				return err
			}
			var at [2]string
			defer func() { near.Delete(at) }()
			return runner.Run(ctx, settings, runnerLog, func(addr string, srv *runnerapi.Server) {
				at = [2]string{h.Name, addr}
				near.Store(at, srv)
				served.Store(true)
				go debug.FreeOSMemory() // what the start took
			})
		},
		Log: log, Grace: s.DrainTimeout + 15*time.Second,
		OnExit: func(host string, err error) {
			switch {
			case errors.Is(err, runnerhost.ErrReplaced):
				fail(fmt.Errorf("%w: %w", errTwin(host), err))
			case cannotListen(err) && !served.Load():
				fail(fmt.Errorf("host %s: %w; give it another --runner-addr", host, err))
			default:
				keep.again(back, host)
			}
		},
	})
	defer hosts.Close()
	serve.near = func(host, addr string) httpapi.LocalRunner {
		if r, ok := near.Load([2]string{host, addr}); ok {
			return r.(httpapi.LocalRunner)
		}
		return nil
	}

	all := Drivers(drivers.Remote(log))
	all[catalog.DriverLocal] = hosts
	sweeper, err := warmer.New(warmer.Settings{RedisFinder: config.RedisFinder{RedisURL: s.RedisURL, Pool: s.Pool}, Log: s.Log, Sweep: s.Sweep, RunnerSecret: s.RunnerSecret}, warmer.Deps{Drivers: all, Log: log})
	if err != nil {
		stop()
		return err
	}
	defer sweeper.Close()

	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	forget := func() {}
	err = Serve(ctx, serve, all, log, func(addr string) {
		cert := s.TLSCert
		if cert != "" {
			cert, _ = filepath.Abs(cert) // commands run in other folders
		}
		if remove, err := (config.Running{URL: s.url(addr), Cert: cert, Pool: s.Pool, Redis: embedded}).Write(s.StateDir); err != nil {
			log.Warn("commands will not find this gateway by its state folder", "error", err)
		} else {
			forget = remove
		}
		wg.Go(func() { s.wakeAll(back, hosts, log) })
		wg.Go(func() { _ = sweeper.Run(back) }) // ends with back
		s.greet(out, addr, embedded)
	})
	forget()
	switch cause := context.Cause(ctx); {
	case cause != nil && !errors.Is(cause, context.Canceled):
		return cause
	case errors.Is(err, context.Canceled):
		return nil
	}
	return err
}

// checkTwin refuses a start beside another gateway run that has one of this one's hosts in the same pool: their runners
// would take the host from each other without end.
func (s RunSettings) checkTwin(ctx context.Context) error {
	if s.RedisURL == "" {
		return nil
	}
	c, err := s.catalog()
	if err != nil {
		return err
	}
	store, err := state.Open(state.Options{URL: s.RedisURL, Pool: s.Pool, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	snap, err := store.Snapshot(ctx)
	if err != nil {
		return nil // Redis may come later
	}
	for _, h := range c.Hosts {
		other := snap.Hosts[h.Name]
		if h.Driver != catalog.DriverLocal || s.Host != "" && h.Name != s.Host || other == nil || other.State != policy.Ready {
			continue
		}
		if conn, err := net.DialTimeout("tcp", other.Addr, time.Second); err == nil {
			_ = conn.Close()
			return errTwin(h.Name)
		}
	}
	return nil
}

func errTwin(host string) error {
	return fmt.Errorf("another program runs the host %q of this pool in this Redis: stop it, or give this one another --pool, or another --host with a models file that names it", host)
}

// lockState makes the state folder, for this process alone until unlock.
func (s *RunSettings) lockState() (unlock func(), err error) {
	if err := os.MkdirAll(s.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	unlock, err = runner.Lock(filepath.Join(s.StateDir, "gateway.lock"))
	if errors.Is(err, runner.ErrRunning) {
		other, _ := config.ReadRunning(s.StateDir)
		return nil, fmt.Errorf("state folder %s: another gateway run uses it (%s); stop it first, or give this one another --state-dir", s.StateDir, cmp.Or(other.URL, "it is starting"))
	}
	return unlock, err
}

// keepSecrets reads the secrets that no flag sets from the state folder, and makes those that are missing.
func (s *RunSettings) keepSecrets() (err error) {
	if s.RunnerSecret == "" {
		if s.RunnerSecret, err = keptSecret(s.StateDir, "runner-secret"); err != nil {
			return err
		}
	}
	if !s.keyed() {
		s.localKey, err = keptSecret(s.StateDir, cli.AdminKeyFile)
	}
	return err
}

// embedRedis starts the embedded Redis unless a flag names another one. It returns its socket, "" if there is none.
func (s *RunSettings) embedRedis() (socket string, closeRedis func(), err error) {
	if s.RedisURL != "" {
		return "", func() {}, nil
	}
	if socket, err = filepath.Abs(filepath.Join(s.StateDir, "redis.sock")); err != nil {
		return "", nil, err
	}
	redis, err := startRedis(socket)
	if err != nil {
		return "", nil, fmt.Errorf("embedded Redis: %w", err)
	}
	s.RedisURL = config.SocketURL(socket)
	return socket, redis.Close, nil
}

// withLocalHost makes this machine the only host where the models file names none.
func (s RunSettings) withLocalHost(c *catalog.Catalog) (*catalog.Catalog, error) {
	return c.WithLocalHost(cmp.Or(s.Host, "local"), s.labels()...)
}

// labels are those of --labels.
func (s RunSettings) labels() []string {
	return strings.FieldsFunc(s.Labels, func(r rune) bool { return r == ' ' || r == ',' })
}

// checkHost requires that --host, if set, is a local host of the models file, the one that this program runs. Without it, several
// local hosts cannot share the port of --runner-addr.
func (s RunSettings) checkHost() error {
	if s.Host == "" {
		c, err := s.catalog()
		if err != nil {
			return nil // whoever reads it next reports it
		}
		shared := 0
		for _, h := range c.Hosts {
			if h.Driver == catalog.DriverLocal && h.Address == "" {
				shared++
			}
		}
		if _, port, _ := net.SplitHostPort(s.RunnerAddr); shared > 1 && port != "0" && port != "" {
			return fmt.Errorf("--runner-addr %s: %d local hosts of %s would share it; leave it out, or set the address of each", s.RunnerAddr, shared, s.Models)
		}
		return nil
	}
	if !catalog.ValidHostName(s.Host) {
		return fmt.Errorf("--host %q: want at most 64 letters, digits and . _ -, the first a letter or digit", s.Host)
	}
	c, err := s.catalog()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(c.Hosts, func(h *catalog.Host) bool { return h.Name == s.Host && h.Driver == catalog.DriverLocal }) {
		return fmt.Errorf("--host %s: %s has no host of that name with the driver local", s.Host, s.Models)
	}
	return nil
}

// catalog reads the models file.
func (s RunSettings) catalog() (*catalog.Catalog, error) {
	c, _, err := catalog.Load(s.Models)
	if err != nil {
		return nil, err
	}
	return s.withLocalHost(c)
}

// wakeAll starts the local hosts, so that the first request need not wait for them.
func (s RunSettings) wakeAll(ctx context.Context, d power.Driver, log *slog.Logger) {
	if c, err := s.catalog(); err == nil {
		for _, missing := range cli.MissingPrograms(c, s.EnginesDir) {
			log.Warn("models cannot be loaded on this machine", "error", missing)
		}
	}
	if err := s.wakeLocal(ctx, d, ""); err != nil && ctx.Err() == nil {
		log.Error("local host does not start", "error", err)
	}
}

// wakeLocal starts the local host of that name, or with "" all local hosts of the models file.
func (s RunSettings) wakeLocal(ctx context.Context, d power.Driver, name string) error {
	c, err := s.catalog()
	if err != nil {
		return err
	}
	if name == "" {
		name = s.Host
	}
	var errs []error
	for _, h := range c.Hosts {
		if h.Driver == catalog.DriverLocal && (name == "" || h.Name == name) {
			errs = append(errs, d.Wake(ctx, *h))
		}
	}
	return errors.Join(errs...)
}

// runner returns the settings of a local host's runner: the flags, with what the models file says of the host.
func (s RunSettings) runner(h catalog.Host) (runner.Settings, error) {
	if s.Host != "" && h.Name != s.Host {
		return runner.Settings{}, fmt.Errorf("host %s is not the one of --host %s", h.Name, s.Host)
	}
	r := runner.Settings{
		Redis: config.Redis{RedisURL: s.RedisURL, Pool: s.Pool}, Log: s.Log, ClientLimits: s.ClientLimits, HostSettings: s.HostSettings,
		Evict: s.Evict, Price: h.Price, RunnerSecret: s.RunnerSecret, Traces: s.Traces,
	}
	r.Host = h.Name
	r.MaxConnsPerAddress = 0 // its only client is this gateway
	if h.Address != "" {
		r.RunnerAddr = h.Address
	}
	if devices := h.Devices.String(); devices != "" {
		r.Devices = devices
	}
	labels := slices.Clone(h.Labels)
	for _, l := range s.labels() {
		if !slices.Contains(labels, l) {
			labels = append(labels, l)
		}
	}
	r.Labels = strings.Join(labels, ",")
	if len(h.NPUSeats) > 0 { // the runner reads them in the catalog
		r.NPUSeats = ""
	}
	memory := strings.Fields(s.MemoryBudget)
	for _, kind := range slices.Sorted(maps.Keys(h.Memory)) {
		memory = append(memory, fmt.Sprintf("%s=%d", kind, h.Memory[kind])) // the last one counts
	}
	r.MemoryBudget = strings.Join(memory, " ")
	if s.WeightsDir != "" {
		r.WeightsDir = filepath.Join(s.WeightsDir, h.Name) // a folder has one owner
	}
	r.Recipes = cmp.Or(s.Recipes, s.Models)
	return r, nil
}

// keptSecret reads a secret of the state folder, or makes it at the first start. Only the owner can read it afterwards.
func keptSecret(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err == nil && len(data) >= 32 {
		if err := os.Chmod(path, 0o600); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		return strings.TrimSpace(string(data)), nil
	}
	if err != nil && !os.IsNotExist(err) {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	secret := hex.EncodeToString(b[:])
	if err := errors.Join(os.WriteFile(path, []byte(secret+"\n"), 0o600), os.Chmod(path, 0o600)); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return secret, nil
}

const exampleModel = `    models:
      my-model:
        checkpoint: /path/to/model.gguf
        device: gpu  # or cpu
`

// greet prints where the gateway is and what to try. redis is the embedded one's socket, "" for another Redis.
func (s RunSettings) greet(out io.Writer, addr, redis string) {
	c, err := s.catalog()
	if err != nil {
		return
	}
	url := s.url(addr)
	fmt.Fprintf(out, "\nReveille serves %s at %s/v1\n\n  The pool, live: %s/ui\n\n", cli.Count(len(c.Models), "model"), url, url)
	if len(c.Models) == 0 {
		fmt.Fprintf(out, "  Add models to %s; changes apply immediately. For example:\n\n%s", s.Models, exampleModel)
	}
	key := ""
	if s.keyed() {
		key = " -H 'Authorization: Bearer KEY'"
	}
	tries := 0
	try := func(path, body string) {
		if tries++; tries <= 3 {
			fmt.Fprintf(out, "  curl -s %s%s%s -d '%s'\n", url, path, key, body)
		}
	}
	seen := map[string]bool{}
	for _, m := range c.Models {
		if t := string(m.Type); !seen[t] {
			seen[t] = true
			switch t {
			case "llm":
				try("/v1/chat/completions", `{"model":"`+m.ID+`","messages":[{"role":"user","content":"Say hello"}],"max_tokens":32}`)
			case "embedding":
				try("/v1/embeddings", `{"model":"`+m.ID+`","input":"a cat on a mat"}`)
			case "reranking":
				try("/v1/rerank", `{"model":"`+m.ID+`","query":"cat","documents":["a cat","a tax report"]}`)
			}
		}
	}
	if s.localKey != "" {
		fmt.Fprintf(out, "\n  Registering models, engine logs and settings need the admin key in %s\n", filepath.Join(s.StateDir, cli.AdminKeyFile))
	}
	hint := ""
	if redis != "" {
		hint = fmt.Sprintf("  redis-cli -s %s KEYS 'rv:*'\n", shellWord(filepath.Join(s.StateDir, filepath.Base(redis))))
	}
	fmt.Fprintf(out, "\n%s  Ctrl-C ends everything\n\n", hint)
}

// shellWord quotes a text for a shell where it needs quotes.
func shellWord(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,-]+$`)

// cannotListen reports whether err is of an address that cannot be listened on.
func cannotListen(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "listen"
}
