package host

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/infra/state"
	"reveille/runner/batch"
	"reveille/runner/conversations"
	"reveille/runner/devices"
	"reveille/runner/engine"
	"reveille/runner/engineslots"
	"reveille/runner/fairqueue"
	"reveille/runner/mmcache"
	"reveille/runner/plan"
	"reveille/runner/sandbox"
)

// Config configures a Host. Where a field names a default, zero selects it.
type Config struct {
	Name     string
	Boot     string // changes with every start
	Machine  string // id of this machine, if Name is a slot of a group that it has claimed
	Addr     string // where gateways reach this runner
	TLS      string // fingerprint of its certificate, "" if it speaks no TLS
	Version  string
	Sandbox  sandbox.Report // what confines its engines
	Labels   []string
	Limits   policy.Limits
	Hardware // this machine's devices at startup
	// Detect detects the devices again when the host wakes and its runner was not restarted. nil keeps Hardware. It
	// returns in bounded time.
	Detect func(context.Context) Hardware
	// Free returns the devices of some kinds with their free memory, in bounded time. nil: budgets do not depend on it.
	Free     func(context.Context, policy.Devices) devices.Found
	Margin   int64                      // bytes of each device's free memory that loads leave free
	NPUSeats map[policy.Type]int        // NPU seats; nil: those of the host's catalog entry, else one NPU model
	Options  recipe.Options             // load options from flags and environment; the pool's run-time settings override them
	Recipes  func() (recipe.Set, error) // this machine's recipes, read with each new catalog; nil: the built-in ones
	Evict    policy.EvictionPolicy      // which idle model is evicted; default LRU
	Price    float64                    // price of an hour of this host, for policy.Cost; 0 counts as 1

	FairAfter    time.Duration // a busy victim still takes new requests this long; default 2 s
	DrainTimeout time.Duration // open requests of an unloading model are cut after this; default 30 s
	// RetireTimeout is the same for a copy of a model whose catalog entry changed; default 1 h.
	RetireTimeout time.Duration
	Reserve       time.Duration // a loaded model waits this long for the request it was loaded for; default 15 s
	ClearTimeout  time.Duration // a load waits this long for the busy models that it stops; default 300 s
	OthersWait    time.Duration // a load waits this long for memory that other programs hold; default 10 s
	Beat          time.Duration // heartbeat; default 1 s
	UseInterval   time.Duration // pause between two calls of InUse; default 15 s

	// InUse returns why this machine must stay on although its host is idle, "" for no reason, within a few seconds. It
	// is called while the host holds no model, and delays its sleep as work of its own would. nil: nothing does.
	InUse func(context.Context) string
	// Forget deletes the saved conversations of a model from before at, "" for all models, and prevents engines
	// prepared before at from saving theirs. It does not wait. nil: nothing is saved.
	Forget func(model string, at uint64)

	Generation uint64       // highest generation known from an earlier run
	OnRegister func(uint64) // called with each generation, to store it on disk; may be nil
	Store      *state.Store
	Engines    Engines
	Weights    Weights // nil: all files are on this host
	Log        *slog.Logger
}

// Hardware is a host's devices and how much of their memory models may use.
type Hardware struct {
	Devices policy.Devices
	Budget  map[policy.Devices]int64 // bytes for each kind of device; no entry: no limit
	Totals  map[policy.Devices]int64 // bytes of all devices of a kind, where known
	Cards   policy.GPUMemory         // the budget of each GPU; nil where all count as one, for example because --memory-budget sets the sum
	Found   devices.Found            // each device, and what was not found
}

// Engine is one running engine as a host sees it.
type Engine interface {
	PID() int
	BaseURL() string
	APIKey() string
	Command() string
	Done() <-chan struct{}
	Err() error
	// Stop ends the engine. It returns when the process is gone and Done is closed, or in bounded time with an error
	// when the process does not end. It can be called any number of times.
	Stop(ctx context.Context) error
	// Kill is Stop without the time that an engine gets to exit by itself.
	Kill(ctx context.Context) error
	// Client reaches the engine's HTTP interface. It belongs to the engine and is closed with it.
	Client() *relay.Client
	// Measured returns the maximum memory, in bytes, that the engine has taken of its devices so far, 0 if unknown.
	Measured() int64
	// Held returns how many of these bytes become free when the engine ends, 0 if unknown.
	Held() int64
	// Features returns what the engine has besides its HTTP interface.
	Features() Features
}

// Features are what only some engines have. The zero value of a field means that an engine lacks it.
type Features struct {
	Permits       *fairqueue.Queue      // bounds its concurrent requests
	Embeddings    *batch.Batcher        // the queue of its embedding requests
	RerankCutter  *batch.RerankCutter   // cuts the texts of rerank requests
	Media         *mmcache.Attachment   // to the encoder cache
	Slots         *engineslots.Table    // its slots, if the runner chooses them
	Conversations *conversations.Engine // saves its conversations
	// LoopPath is a path (GET) that it serves from its main loop, so that a response shows that the loop is not stuck.
	LoopPath string
}

// Engines starts engines.
type Engines interface {
	// Start starts a model's engine on the given GPUs and waits until it serves, it fails, or ctx ends. It returns in
	// bounded time. After an error no process of the engine is left.
	Start(ctx context.Context, m *catalog.Model, r *recipe.Recipe, opts recipe.Options, p plan.Plan, g engine.GPUs) (Engine, error)
	// Check reports what prevents a model from starting on this host: missing or damaged files, no program. It starts
	// nothing, and ends with ctx.
	Check(ctx context.Context, m *catalog.Model, r *recipe.Recipe, opts recipe.Options) error
	// Plan computes how a model is scheduled. It fails if options contradict each other.
	Plan(m *catalog.Model, r *recipe.Recipe, opts recipe.Options, s plan.Share) (plan.Plan, error)
}

// Host owns the models of one host. It is safe for concurrent use.
type Host struct {
	cfg    Config
	log    *slog.Logger
	store  *state.Store
	mirror *state.Mirror

	wake         chan struct{}           // capacity 1: the loop has something to process
	work         sync.WaitGroup          // the load in progress and unloads
	watches      sync.WaitGroup          // a goroutine for each engine, until its process is gone
	life         context.Context         // ends the load in progress when the host drains
	endLife      context.CancelCauseFunc // called by drain
	watchCtx     context.Context         // ends the watches of engines that do not end
	stopWatches  context.CancelFunc      // called at the end of drain
	interruption interruption

	redisMu        sync.Mutex      // held over every write that carries the generation, except those of sleeps; taken before mu
	generation     uint64          // guarded by redisMu; 0 until registered
	mustRegister   bool            // guarded by redisMu: Redis lacks something, register again
	fenced         bool            // guarded by redisMu: Redis refused the generation
	writesEnded    bool            // guarded by redisMu: the final state was written
	registered     time.Time       // guarded by redisMu: time just before the last registration
	written        time.Time       // guarded by redisMu: time just before the last write of a model's record
	unsentOutcomes []ticketOutcome // guarded by redisMu: outcomes not yet written to Redis

	recheckMirror atomic.Bool // Redis showed state older than a recent write: the next beat checks whether that lasts

	mu               sync.Mutex // guards all below, and every resident
	highest          uint64     // highest ticket number seen: a Redis that lost data must continue numbering after it
	catalog          *catalog.Catalog
	refusedCatalog   string    // version that is not signed or could not be parsed
	checkedCatalog   string    // version that the pool announced at the last check
	catalogCheckedAt time.Time // time of that check
	hardware         Hardware
	available        *Hardware // hardware with its budgets reduced by what other programs held at the last reading, nil before
	freeNext         time.Time // time of the next reading
	settings         settings
	settingsChange   uint64               // number of change events received
	residents        map[string]*resident // by resident.key
	loading          *load
	pulls            map[string]*pull        // in progress, by pullKey
	waits            map[string]*ticketWait  // queued tickets that wait, by id
	inProgress       map[string]time.Time    // tickets in progress here (zero time), or the time when Redis accepted their outcome
	learned          map[string]string       // fields of the host's record in Redis: memory needs learned from loads
	needs            map[string]measuredNeed // by plan.Plan.Key
	noClearUntil     map[string]time.Time    // loads that failed on a cleared host, by digest, until when they must not clear it again
	forgotten        map[string]Forgotten    // the last outcome, by model, "" for all
	draining         bool
	grace            context.Context // the time left to open requests; nil until interrupted
	active           bool            // a request was open, or the machine in use, since the last beat
	useReason        string          // what InUse last returned
	stats            Stats
	crashedPins      map[string]*bool // loadPin of crashed engines by model, for their next load
}

// ticketWait is the loop's record of a waiting ticket.
type ticketWait struct {
	since       time.Time // when it became the first in line for its models, zero before
	overtaken   int
	othersSince time.Time // when other programs were first found to hold what it needs
}

// Stats are counts since startup.
type Stats struct {
	Loads, LoadFailures, Evictions, Crashes, Clears, Dropped int
}

// New returns a host that holds no models and does nothing until Run.
func New(cfg Config) *Host {
	cfg.FairAfter = cmp.Or(max(cfg.FairAfter, 0), 2*time.Second)
	cfg.DrainTimeout = cmp.Or(max(cfg.DrainTimeout, 0), 30*time.Second)
	cfg.RetireTimeout = cmp.Or(max(cfg.RetireTimeout, 0), time.Hour)
	cfg.Reserve = cmp.Or(max(cfg.Reserve, 0), 15*time.Second)
	cfg.ClearTimeout = cmp.Or(max(cfg.ClearTimeout, 0), 300*time.Second)
	cfg.OthersWait = cmp.Or(max(cfg.OthersWait, 0), 10*time.Second)
	cfg.Beat = cmp.Or(max(cfg.Beat, 0), time.Second)
	cfg.UseInterval = cmp.Or(max(cfg.UseInterval, 0), 15*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Recipes == nil {
		cfg.Recipes = func() (recipe.Set, error) { return recipe.Shipped(), nil }
	}
	h := &Host{
		cfg: cfg, log: cfg.Log, store: cfg.Store, wake: make(chan struct{}, 1), generation: cfg.Generation, mustRegister: true,
		catalog: &catalog.Catalog{}, settingsChange: 1, residents: map[string]*resident{}, pulls: map[string]*pull{}, waits: map[string]*ticketWait{}, inProgress: map[string]time.Time{},
		noClearUntil: map[string]time.Time{}, crashedPins: map[string]*bool{}, learned: map[string]string{}, forgotten: map[string]Forgotten{}, needs: map[string]measuredNeed{}, settings: settings{limits: cfg.Limits}, hardware: cfg.Hardware,
	}
	h.interruption.started = make(chan struct{})
	h.life, h.endLife = context.WithCancelCause(context.Background())
	h.watchCtx, h.stopWatches = context.WithCancel(context.Background())
	h.mirror = state.NewHostMirror(cfg.Store, cfg.Name, h.onEvent)
	return h
}

// Mirror returns the host's view of the pool, which Run keeps up to date.
func (h *Host) Mirror() *state.Mirror { return h.mirror }

// onEvent handles the pool's events. Ticket events reach the loop through the mirror.
func (h *Host) onEvent(e state.Event) {
	switch {
	case e.Kind == "leave" && e.Host == h.cfg.Name:
		h.releaseReservation(e.Model, e.Ticket, e.Gateway)
	case e.Kind == "settings", e.Kind == "sync":
		h.mu.Lock()
		h.settingsChange++
		h.mu.Unlock()
		h.notify()
	}
}

// notify wakes the loop.
func (h *Host) notify() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Stats returns the counts since startup.
func (h *Host) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats
}
