package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/infra/state"
	runnerengine "reveille/runner/engine"
	"reveille/runner/host"
	"reveille/runner/plan"
	"reveille/testenv"
	"reveille/testenv/kit"
)

var (
	hostCounts = flag.String("hosts", "", "numbers of hosts, separated by commas; empty: 5 and 50, without the minute of loads")
	rate       = flag.Int("rate", 100, "cold loads a second in the minute of loads")
)

const (
	gateways = 5
	models   = 200
	oneByOne = 100 // cold loads that are measured one after the other
	rest     = 10 * time.Second
	steady   = time.Minute

	outageLoads = 100
	loadTakes   = 300 * time.Millisecond // of an engine, while Redis crashes
	staleness   = 200 * time.Millisecond // of the data of a replica that takes over
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// row is what one size of pool costs.
type row struct {
	hosts int

	register  time.Duration // all hosts start at once, until every gateway's mirror has all
	restCalls float64       // Redis commands a second at rest, those inside scripts included
	restCPU   float64       // of a core
	loadCalls float64       // Redis commands of a cold load and the unload behind it
	loadCPU   float64       // ms of Redis for both
	latency   time.Duration // median from Enter to a route, engines starting at once
	steadyP99 time.Duration // the same at the rate
	steadyCPU float64       // of a core
	failed    int           // loads that were refused
	newcomers time.Duration // gateways' worth of mirrors that start at once, until all of them have all hosts
	mirror    float64       // MB of one of them
	emptied   outage        // Redis killed and back without data
	older     outage        // Redis killed and back with the data of some time before, as a replica has them
}

// outage is what a crash of Redis did to loads that were asked for while it was away, and shortly before and after.
type outage struct {
	back          time.Duration // from the kill until every host has beaten again
	known         time.Duration // from then until Redis has the engines that run, not before all loads have ended
	refused       int           // loads that were refused meanwhile, and asked for again
	lost, doubled int           // loads without a response after half a minute, models with an engine too many
}

func (o outage) String() string {
	return fmt.Sprintf("%v, engines known %v, %d refused, %d lost, %d doubled", o.back.Round(time.Millisecond), o.known.Round(time.Millisecond), o.refused, o.lost, o.doubled)
}

func TestFleet(t *testing.T) {
	short := *hostCounts == ""
	counts := []int{5, 50}
	if !short {
		counts = nil
		for text := range strings.SplitSeq(*hostCounts, ",") {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				t.Fatalf("-hosts: %q is not a number of hosts", text)
			}
			counts = append(counts, n)
		}
	}
	var rows []row
	s := startServer(t) // one: a process learns once whom it trusts for TLS
	for _, n := range counts {
		t.Run(fmt.Sprint(n), func(t *testing.T) { rows = append(rows, measure(t, s, n, short)) })
	}
	if t.Failed() {
		return
	}
	printTable(rows)
	first, last := rows[0], rows[len(rows)-1]
	if most := 1.5 * first.loadCalls; last.loadCalls > most {
		t.Errorf("a cold load takes %.0f Redis commands with %d hosts, at most %.0f by those with %d", last.loadCalls, last.hosts, most, first.hosts)
	}
	if most := 5*last.hosts + 20*gateways; last.restCalls > float64(most) {
		t.Errorf("%d hosts take %.0f Redis commands a second at rest, at most %d are meant to", last.hosts, last.restCalls, most)
	}
}

func printTable(rows []row) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "hosts\tregister\tat rest: commands/s\tof a core\tcold load and unload: commands\tms of Redis\tlatency\tat the rate: p99\tof a core\trefused\tnew gateways\tmirror\tRedis emptied: back\tRedis with older data: back\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%d\t%v\t%.0f\t%.1f %%\t%.0f\t%.2f\t%v\t%v\t%.1f %%\t%d\t%v\t%.1f MB\t%v\t%v\t\n", r.hosts, r.register.Round(time.Millisecond), r.restCalls, 100*r.restCPU,
			r.loadCalls, r.loadCPU, r.latency.Round(100*time.Microsecond), r.steadyP99.Round(100*time.Microsecond), 100*r.steadyCPU, r.failed, r.newcomers.Round(time.Millisecond), r.mirror, r.emptied, r.older)
	}
	_ = w.Flush()
}

// measure runs one pool.
func measure(t *testing.T, s server, n int, short bool) row {
	f := start(t, s, n)
	out := row{hosts: n, register: f.started}

	time.Sleep(time.Second) // what registering leaves behind
	span := rest
	if short {
		span = 2 * time.Second
	}
	before := f.usage()
	time.Sleep(span)
	after := f.usage()
	out.restCalls, out.restCPU = after.perSecond(before)

	var waits []time.Duration
	before = f.usage()
	for i := range oneByOne {
		wait, err := f.load(t.Context(), f.gate(i), fmt.Sprint("m", i))
		if err != nil {
			t.Fatal("cold load:", err)
		}
		waits = append(waits, wait)
	}
	after = f.usage()
	took := after.at.Sub(before.at).Seconds()
	out.loadCalls = (after.calls - before.calls - out.restCalls*took) / oneByOne
	out.loadCPU = 1000 * (after.cpu - before.cpu - out.restCPU*took) / oneByOne
	out.latency = quantile(waits, 0.5)

	if !short {
		before = f.usage()
		waits, out.failed = f.steady(t.Context())
		_, out.steadyCPU = f.usage().perSecond(before)
		out.steadyP99 = quantile(waits, 0.99)
	}

	out.newcomers, out.mirror = f.newcomers()

	out.emptied = f.crash(f.server.Restart)
	f.server.save(t)
	out.older = f.crash(func() {
		time.Sleep(staleness)
		f.server.Restart()
	})
	return out
}

func quantile(waits []time.Duration, q float64) time.Duration {
	if len(waits) == 0 {
		return 0
	}
	slices.Sort(waits)
	return waits[min(len(waits)-1, int(q*float64(len(waits))))]
}

// server is a redis-server.
type server struct {
	*testenv.RedisServer
	client *redis.Client
}

func startServer(t *testing.T) server {
	s := testenv.StartRedis(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = c.Close() })
	return server{s, c}
}

// save has the next start begin with the data as they are now.
func (s server) save(t *testing.T) {
	// The first call after a crash may find its connection closed.
	kit.Eventually(t, "the data are saved", func() bool { return s.client.Save(t.Context()).Err() == nil })
}

// fleet is a pool of hosts and gateways over one Redis.
type fleet struct {
	t       *testing.T
	server  server
	hosts   map[string]*host.Host
	gates   []*gateway
	started time.Duration
	models  *catalog.Catalog
	engines engines
}

// gate returns the i-th gateway, counted round and round.
func (f *fleet) gate(i int) *gateway { return f.gates[i%len(f.gates)] }

type gateway struct {
	name   string
	gate   *scheduling.Gate
	mirror *state.Mirror
}

func start(t *testing.T, s server, n int) *fleet {
	f := &fleet{t: t, server: s, hosts: map[string]*host.Host{}}
	kit.Eventually(t, "the last pool is gone", func() bool { return s.client.FlushAll(t.Context()).Err() == nil })
	s.save(t)
	f.parse()
	f.publish()

	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		work.Wait()
	})
	recipes := recipe.Shipped()
	began := time.Now()
	for i := range gateways {
		g := &gateway{name: fmt.Sprint("gateway", i)}
		store := f.open()
		g.mirror = state.NewMirror(store, func(e state.Event) { g.gate.OnEvent(e) })
		g.gate = scheduling.New(scheduling.Config{
			Store: store, Mirror: g.mirror, Waker: nobody{}, Catalog: func() *catalog.Catalog { return f.models }, Gateway: g.name,
		})
		f.gates = append(f.gates, g)
		work.Go(func() { g.mirror.Run(ctx) })
		work.Go(func() { g.gate.Run(ctx) })
	}
	for i := range n {
		name := fmt.Sprintf("host%04d", i)
		h := host.New(host.Config{
			Name: name, Boot: name, Addr: name + ":1", Limits: policy.Uniform(4), Hardware: host.Hardware{Devices: policy.CPU},
			Store: f.open(), Engines: &f.engines, Recipes: func() (recipe.Set, error) { return recipes, nil },
		})
		f.hosts[name] = h
		work.Go(func() { _ = h.Run(ctx) })
	}
	f.awaitHosts()
	f.started = time.Since(began)
	return f
}

func (f *fleet) open() *state.Store {
	s, err := state.Open(state.Options{URL: "redis://" + f.server.Addr, Timeout: 10 * time.Second})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = s.Close() })
	return s
}

// parse makes the catalog.
func (f *fleet) parse() {
	var text strings.Builder
	text.WriteString("models:\n")
	for i := range models {
		fmt.Fprintf(&text, "  m%d: {type: llm, recipe: standin, device: cpu, memory: 10}\n", i)
	}
	c, _, err := catalog.Parse("models.yaml", []byte(text.String()))
	if err != nil {
		f.t.Fatal(err)
	}
	f.models = c
}

func (f *fleet) publish() {
	raw, err := f.models.Marshal()
	if err == nil {
		_, err = f.open().PutCatalog(context.Background(), f.models.Version, raw, nil)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// newcomers starts further mirrors at once, and returns when they have all hosts and what one of them reads MB.
func (f *fleet) newcomers() (took time.Duration, mb float64) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	before := heap()
	began := time.Now()
	var all []*state.Mirror
	for range f.gates {
		m := state.NewMirror(f.open(), nil)
		all = append(all, m)
		work.Go(func() { m.Run(ctx) })
	}
	for _, m := range all {
		kit.Within(f.t, time.Minute, "a new mirror has all hosts", func() bool { return len(m.Snapshot().Hosts) == len(f.hosts) })
	}
	took = time.Since(began)
	mb = (heap() - before) / float64(len(all)) / 1e6
	runtime.KeepAlive(all)
	return took, mb
}

// heap is what is in use, in bytes.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// awaitHosts waits until every gateway's mirror shows all hosts ready.
func (f *fleet) awaitHosts() {
	f.t.Helper()
	for _, g := range f.gates {
		kit.Within(f.t, time.Minute, "all hosts are registered", func() bool {
			ready := 0
			for _, h := range g.mirror.Snapshot().Hosts {
				if h.State == policy.Ready {
					ready++
				}
			}
			return ready == len(f.hosts)
		})
	}
}

// usage is what Redis has done since its start.
type usage struct {
	at    time.Time
	calls float64
	cpu   float64 // seconds
}

func (f *fleet) usage() usage {
	info := f.server.client.InfoMap(context.Background(), "stats", "cpu")
	if info.Err() != nil {
		f.t.Fatal(info.Err())
	}
	read := func(section, name string) float64 {
		v, err := strconv.ParseFloat(info.Item(section, name), 64)
		if err != nil {
			f.t.Fatal(err)
		}
		return v
	}
	return usage{time.Now(), read("Stats", "total_commands_processed"), read("CPU", "used_cpu_user") + read("CPU", "used_cpu_sys")}
}

func (u usage) perSecond(before usage) (calls, cpu float64) {
	took := u.at.Sub(before.at).Seconds()
	return (u.calls - before.calls) / took, (u.cpu - before.cpu) / took
}

// crash has models loaded while Redis crashes in their midst, and waits until all is well again. It leaves the models loaded.
func (f *fleet) crash(crash func()) (out outage) {
	f.engines.takes.Store(int64(loadTakes))
	defer f.engines.takes.Store(0)
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	var refused, failed atomic.Int64
	var work sync.WaitGroup
	for i := range outageLoads {
		work.Go(func() {
			time.Sleep(time.Duration(i) * 2 * time.Second / outageLoads)
			for {
				_, err := f.use(ctx, f.gate(i), fmt.Sprint("m", i))
				if err == nil {
					return
				}
				if refused.Add(1) == 1 {
					f.t.Log("a load was refused:", err)
				}
				select {
				case <-time.After(200 * time.Millisecond):
				case <-ctx.Done():
					failed.Add(1)
					f.t.Log("a load was lost:", err)
					return
				}
			}
		})
	}
	time.Sleep(time.Second)
	began := time.Now()
	crash()
	read := func() map[string]*state.HostRecord {
		s, err := f.gates[0].mirror.Refresh(f.t.Context())
		if err != nil {
			return nil
		}
		return s.Hosts
	}
	kit.Within(f.t, time.Minute, "all hosts have beaten again", func() bool {
		hosts := read()
		for _, h := range hosts {
			if h.State != policy.Ready || h.SeenMS < began.UnixMilli() {
				return false
			}
		}
		return len(hosts) == len(f.hosts)
	})
	out.back = time.Since(began)
	work.Wait()
	kit.Within(f.t, time.Minute, "Redis has the engines that run", func() bool {
		known := 0
		for _, h := range read() {
			known += len(h.Models)
		}
		return known == f.engines.count()
	})
	out.known = time.Since(began)
	out.refused, out.lost = int(refused.Load()), int(failed.Load())
	out.doubled = f.engines.doubled()
	for i := range outageLoads {
		if _, err := f.gate(i).gate.Unload(f.t.Context(), fmt.Sprint("m", i), false); err != nil && !errors.Is(err, api.ModelNotLoaded) {
			f.t.Error("after a crash:", err)
		}
	}
	kit.Within(f.t, time.Minute, "no engine is left", func() bool { return f.engines.count() == 0 })
	return out
}

// load has a model loaded, sends it a request and has it unloaded, and returns how long the request waited.
func (f *fleet) load(ctx context.Context, g *gateway, model string) (time.Duration, error) {
	wait, err := f.use(ctx, g, model)
	if err != nil {
		return 0, err
	}
	if _, err = g.gate.Unload(ctx, model, false); errors.Is(err, api.ModelNotLoaded) { // another load has evicted it
		err = nil
	}
	return wait, err
}

// use sends a model a request, and returns how long that waited for the model.
func (f *fleet) use(ctx context.Context, g *gateway, model string) (time.Duration, error) {
	began := time.Now()
	w, err := g.gate.Enter(scheduling.WaitRequest{Model: model})
	if err != nil {
		return 0, err
	}
	select {
	case <-w.Done():
	case <-ctx.Done():
		w.Leave(false)
		return 0, context.Cause(ctx)
	}
	wait := time.Since(began)
	route, info, err := w.Result()
	if err != nil {
		return 0, err
	}
	lease, refused := f.hosts[route.Host].AcquireModel(model, info.Ticket, g.name, info.Waiters, func(error) {})
	if lease == nil {
		return 0, fmt.Errorf("the request was refused: %s", refused)
	}
	lease.Release()
	return wait, nil
}

// steady has models loaded at the rate, each by another gateway than the last, and returns how long requests waited.
func (f *fleet) steady(ctx context.Context) (waits []time.Duration, failed int) {
	var mu sync.Mutex
	var work sync.WaitGroup
	idle := make(chan string, models)
	for _, i := range rand.Perm(models) {
		idle <- fmt.Sprint("m", i)
	}
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	defer tick.Stop()
	end := time.Now().Add(steady)
	for i := 0; time.Now().Before(end); i++ {
		<-tick.C
		model := <-idle
		work.Go(func() {
			wait, err := f.load(ctx, f.gate(i), model)
			idle <- model
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if failed++; failed == 1 {
					f.t.Log("a load failed:", err)
				}
				return
			}
			waits = append(waits, wait)
		})
	}
	work.Wait()
	return waits, failed
}

// nobody wakes hosts: all are awake.
type nobody struct{}

func (nobody) Wake(context.Context, string) error { return nil }

// engines start at once, or take some time.
type engines struct {
	takes atomic.Int64 // ns

	mu      sync.Mutex
	running map[string]int // engines by model
}

func (*engines) Plan(*catalog.Model, *recipe.Recipe, recipe.Options, plan.Share) (plan.Plan, error) {
	return plan.Plan{}, nil
}

func (*engines) Check(context.Context, *catalog.Model, *recipe.Recipe, recipe.Options) error {
	return nil
}

func (e *engines) Start(ctx context.Context, m *catalog.Model, _ *recipe.Recipe, _ recipe.Options, _ plan.Plan, _ runnerengine.GPUs) (host.Engine, error) {
	select {
	case <-time.After(time.Duration(e.takes.Load())):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	e.note(m.ID, 1)
	return &engine{of: e, model: m.ID, pid: int(pids.Add(1)), done: make(chan struct{}), client: relay.New(relay.Config{Addr: "127.0.0.1:1"})}, nil
}

func (e *engines) note(model string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil {
		e.running = map[string]int{}
	}
	e.running[model] += n
}

func (e *engines) count() (sum int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.running {
		sum += n
	}
	return sum
}

// doubled is how many models have more than one engine.
func (e *engines) doubled() (models int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.running {
		if n > 1 {
			models++
		}
	}
	return models
}

var pids atomic.Int64

type engine struct {
	of     *engines
	model  string
	pid    int
	done   chan struct{}
	once   sync.Once
	client *relay.Client
}

func (e *engine) PID() int              { return e.pid }
func (e *engine) BaseURL() string       { return "http://127.0.0.1:1" }
func (e *engine) APIKey() string        { return "" }
func (e *engine) Command() string       { return "none" }
func (e *engine) Done() <-chan struct{} { return e.done }
func (e *engine) Err() error            { return nil }
func (e *engine) Client() *relay.Client { return e.client }

func (e *engine) Kill(ctx context.Context) error { return e.Stop(ctx) }
func (e *engine) Measured() int64                { return 0 }
func (e *engine) Held() int64                    { return 0 }
func (e *engine) Features() host.Features        { return host.Features{} }

func (e *engine) Stop(context.Context) error {
	e.once.Do(func() {
		e.client.Close()
		e.of.note(e.model, -1)
		close(e.done)
	})
	return nil
}
