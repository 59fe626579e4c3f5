// Package launch turns catalog entries into running engines: it finds the program, checks the files, starts the
// process and waits until the engine serves. It implements host.Engines.
package launch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/logring"
	"reveille/infra/modelfile"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/runner/batch"
	"reveille/runner/conversations"
	"reveille/runner/engine"
	"reveille/runner/engineslots"
	"reveille/runner/fairqueue"
	"reveille/runner/host"
	"reveille/runner/mmcache"
	"reveille/runner/plan"
	"reveille/runner/weights"
)

// Launcher starts engines on this machine. It is safe for concurrent use.
type Launcher struct {
	Spawner     *engine.Spawner
	Marker      *engine.Marker
	Finder      engine.Finder
	SocketDir   string
	Log         *slog.Logger
	Media       *mmcache.Server // caches the output of media encoders; nil: no cache
	Meters      *batch.Meters   // of embedding queues; nil: none
	CallTimeout time.Duration   // timeout of a call from such a queue; default 10 min
	Weights     *weights.Cache  // fetches missing weights; nil suffices for Plan, and for models with paths
	// Conversations saves llama-server's conversations across loads; nil: none are saved.
	Conversations *conversations.Store

	plans   plan.Reader
	checker modelfile.Checker
	logs    sync.Map // *logring.Ring of the last engine, by model
}

// keepLog is how long an engine's log can be read after the engine has exited.
const keepLog = 15 * time.Minute

// EngineLog returns the log of a model's last engine: loading, serving, or recently exited. It may be nil.
func (l *Launcher) EngineLog(model string) *logring.Ring {
	log, _ := l.logs.Load(model)
	ring, _ := log.(*logring.Ring)
	return ring
}

func (l *Launcher) expireLog(p *engine.Process) {
	time.AfterFunc(keepLog, func() { l.logs.CompareAndDelete(p.Spec().Model, p.Log()) })
}

var _ host.Engines = (*Launcher)(nil)

// Start starts the engine of a model and waits until it serves. If ctx ends first, the engine is killed. A failed start
// leaves nothing behind, except a process that survives SIGKILL, which is logged. Errors come from package engine, are
// *host.Error, or are the error of ctx.
func (l *Launcher) Start(ctx context.Context, m *catalog.Model, r *recipe.Recipe, opts recipe.Options, pl plan.Plan, g engine.GPUs) (host.Engine, error) {
	f, err := l.hold(ctx, m)
	if err != nil {
		return nil, err
	}
	e, err := l.start(ctx, m, r, opts, pl, g, f)
	if err != nil {
		f.release()
		return nil, err
	}
	return e, nil
}

// start is Start for a model whose files are on this host. The files are released when the engine exits.
func (l *Launcher) start(ctx context.Context, m *catalog.Model, r *recipe.Recipe, opts recipe.Options, pl plan.Plan, g engine.GPUs, f *files) (host.Engine, error) {
	var err error
	spec := engine.Spec{
		Recipe: *r, Model: m.ID, Checkpoint: f.checkpoint, MMProj: f.mmproj, Type: m.Type, Devices: m.Devices, Options: pl.Apply(r, opts), GPUs: g,
		Env: map[string]string{},
	}
	if errs := &spec.Recipe.Errors; r.Family() == recipe.VLLM && spec.Options["kv_cache_bytes"] != nil {
		// The size of its KV cache is fixed: if a context does not fit, evicting other models would not help.
		errs.Refused, errs.OutOfMemory = slices.Concat(errs.Refused, errs.OutOfMemory), nil
	}
	spec.Program, err = l.Finder.Find(r, r.Backend(opts, m.Devices))
	if err != nil {
		return nil, err
	}
	media := l.attach(m, &spec)
	perKey := m.Conversations == catalog.SharePerKey
	if perKey {
		if err := isolateSlots(&spec); err != nil {
			media.Detach()
			return nil, err
		}
	}
	conversations := l.prepareConversations(m, &spec, &pl)
	onGPU := r.Family() == recipe.LlamaCpp && r.DevicesFor(opts, m.Devices).Has(policy.GPU)
	spec.ReportsBuffers = onGPU
	if onGPU && tracesBuffers(ctx, spec.Program) {
		spec.Env["LLAMA_ARG_LOG_VERBOSITY"] = "4"
	}
	p, err := engine.Start(ctx, spec, engine.Config{
		Logger: l.Log, Spawner: l.Spawner, Marker: l.Marker, Environ: os.Environ(), SocketDir: l.SocketDir, Files: &l.checker,
	})
	if err != nil {
		media.Detach()
		return nil, err
	}
	l.logs.Store(m.ID, p.Log())
	run := newRunning(p, media)
	if err = p.EnsureReady(ctx); err == nil && onGPU {
		var known bool // otherwise it would serve from the CPU, many times slower, unseen
		if known, err = p.CheckGPU(); !known {
			l.Log.Warn("the engine's log does not tell whether it uses the GPU", "model", m.ID)
		}
	}
	if err == nil && (perKey || conversations != nil) {
		run.slots, err = slotTable(ctx, run, pl.Parallel, perKey)
		if err != nil && !perKey {
			l.Log.Warn("conversations will not be saved", "model", m.ID, "error", err)
			conversations, err = nil, nil
		}
	}
	if err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if stuck := p.Kill(stop); stuck != nil {
			l.Log.Error("engine still runs after its load failed", "model", m.ID, "pid", p.PID(), "error", stuck)
		}
		l.expireLog(p)
		media.Detach()
		run.client.Close()
		run.ownClient.Close()
		return nil, err
	}
	media.Started()
	l.Log.Info("plan", "model", m.ID, "kind", string(pl.Kind), "context", pl.Context, "n_batch", pl.NBatch, "n_ubatch", pl.NUBatch,
		"parallel", pl.Parallel, "need", pl.Need, "share", pl.Share, "reason", pl.Reason, "warnings", pl.Warnings)
	run.conversations = conversations
	conversations.Serve(run.ownClient, p.APIKey(), p.Dir(), pl.Parallel, perKey)
	concurrent := maxConcurrent(r.Family(), pl)
	if run.slots != nil {
		concurrent = pl.Parallel // each waits for one of the slots
	}
	run.files, run.permits = f, fairqueue.New(concurrent)
	l.addTokenCounting(ctx, run, m, r, f.checkpoint, opts, pl)
	go func() {
		run.closeAfterExit()
		l.expireLog(p)
	}()
	return run, nil
}

// addTokenCounting gives an embedding model its queue, and a reranking model the cutter of its texts. Requests to an
// engine that cannot count tokens are relayed as they are.
func (l *Launcher) addTokenCounting(ctx context.Context, run *runningEngine, m *catalog.Model, r *recipe.Recipe, checkpoint string, opts recipe.Options, p plan.Plan) {
	if m.Type != policy.Embedding && m.Type != policy.Reranking {
		return
	}
	log := l.Log.With("model", m.ID)
	if !batch.Tokenizes(r.Family()) || r.Family() == recipe.TEI && m.Type == policy.Reranking { // TEI cuts texts itself
		log.Info("requests are relayed as they are: this engine counts no tokens, or cuts texts itself", "recipe", r.Name, "engine", r.Family())
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var words *batch.WordPiece
	if tokens, err := plan.Vocabulary(checkpoint); err == nil && tokens != nil {
		words = batch.NewWordPiece(tokens)
	}
	limits := batch.Limits{NBatch: p.NBatch, NUBatch: p.NUBatch, Context: p.Context, Positions: p.Longest}
	e := &batch.HTTP{Client: run.ownClient, Key: run.APIKey(), Model: m.ID, Family: r.Family(), Timeout: cmp.Or(l.CallTimeout, 10*time.Minute)}
	var err error
	if m.Type == policy.Reranking {
		run.cutter, err = batch.NewRerankCutter(ctx, e, words, limits)
	} else {
		delay, _ := opts["batch_delay"].(int64)
		run.queue, err = batch.New(ctx, batch.Config{
			Limits: limits, Engine: e, Words: words, Delay: time.Duration(delay) * time.Millisecond, Model: m.ID, Meters: l.Meters, Log: log,
			OutOfMemory: func(text string) bool { return r.Errors.Cause(text) == recipe.CauseOutOfMemory },
		})
	}
	if err != nil {
		log.Warn("requests are neither batched nor cut", "error", err)
	}
}

// prepareConversations prepares an engine to save and restore conversations. The engine
// also runs without them.
func (l *Launcher) prepareConversations(m *catalog.Model, spec *engine.Spec, pl *plan.Plan) *conversations.Engine {
	if l.Conversations == nil || m.Conversations == catalog.ShareNone || spec.Type != policy.LLM || spec.Recipe.Family() != recipe.LlamaCpp || pl.CannotSave != "" {
		return nil
	}
	saving := *spec
	saving.SaveSlots, saving.Env = true, maps.Clone(spec.Env)
	maps.Copy(saving.Env, conversations.Env)
	if pl.ExtraSWABytes > 0 {
		saving.Env["LLAMA_ARG_SWA_FULL"] = "1"
	}
	argv, env, err := command(saving)
	if err != nil {
		return nil // start reports it
	}
	e, err := l.Conversations.NewEngine(conversations.Process{
		Model: spec.Model, Checkpoint: spec.Checkpoint, Program: spec.Program, Argv: argv, Env: env, PerToken: pl.KVBytesPerToken,
		OnlyForward: pl.OnlySealed,
	})
	if err != nil {
		l.Log.Warn("conversations will not be saved", "model", spec.Model, "error", err)
		return nil
	}
	*spec = saving
	return e
}

func command(s engine.Spec) (argv, env []string, err error) {
	if argv, err = engine.Argv(s); err == nil {
		env, err = engine.Environ(s, os.Environ())
	}
	return argv, env, err
}

// attach gives an engine the encoder cache if its recipe and model allow it. The engine also runs without it. If the
// model's cache is off, the library that llama-server loads for it still gives each image and audio file a unique id,
// so that llama-server's own prompt cache does not confuse them.
func (l *Launcher) attach(m *catalog.Model, spec *engine.Spec) *mmcache.Attachment {
	if l.Media == nil || spec.Recipe.EncoderCache != recipe.EncoderInterpose || m.MMProj == "" {
		return nil
	}
	spec.Env = l.Media.Env()
	if m.MMCache == catalog.ShareNone {
		return nil
	}
	argv, env, err := command(*spec)
	if err != nil {
		return nil // start reports it
	}
	a, err := l.Media.Attach(m, mmcache.Encoder{Projector: spec.MMProj, Program: spec.Program, Argv: argv, Env: env})
	if err != nil {
		l.Log.Warn("encoder outputs are not cached", "model", m.ID, "error", err)
		return nil
	}
	spec.Env = a.Env()
	return a
}

// Plan computes a model's plan from its files, including the projector's weights.
func (l *Launcher) Plan(m *catalog.Model, r *recipe.Recipe, opts recipe.Options, s plan.Share) (plan.Plan, error) {
	o := plan.OptionsOf(r, m.Type, m.Devices, int64(m.Memory), opts)
	if m.MMProj != "" {
		o.Media = true
		if info, err := os.Stat(l.path(m.MMProj, "")); err == nil {
			o.Projector = info.Size()
		}
	}
	o.Conversations = l.Conversations != nil && m.Conversations != catalog.ShareNone
	if err := o.Validate(); err != nil {
		return plan.Plan{}, err
	}
	p := l.plans.For(l.path(m.Checkpoint, m.SHA256), o, s)
	if p.Estimate > 0 {
		p.Signature = l.signature(m, r, opts, o, &p)
	}
	return p, nil
}

// signature identifies loads that take the same memory. It depends on the engine's command, the planned sizes (context
// and batches) and the metadata of the model's files, but not on the files' names or content.
func (l *Launcher) signature(m *catalog.Model, r *recipe.Recipe, opts recipe.Options, o plan.Options, p *plan.Plan) string {
	meta, _ := l.plans.Read(l.path(m.Checkpoint, m.SHA256)) // the plan has read it
	parts := []any{meta, o.Projector, m.Type, r.Family(), r.Command, r.Env, r.TypeFlags, p.Apply(r, opts).Canonical()}
	if p.ExtraSWABytes > 0 {
		parts = append(parts, p.ExtraSWABytes)
	}
	text, _ := json.Marshal(parts) // numbers, strings, booleans and lists of them always marshal
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Measured returns the maximum memory, in bytes, that the engine has taken from its devices, 0 if unknown.
func (r *runningEngine) Measured() int64 {
	main, device := r.Memory()
	if r.Spec().Devices == policy.CPU {
		return main
	}
	return device
}

// Held returns how many of the bytes of Measured become free when the engine exits, 0 if unknown.
func (r *runningEngine) Held() int64 {
	main, device := r.Process.Held()
	if r.Spec().Devices == policy.CPU {
		return main
	}
	return device
}

// runningEngine is an engine that serves.
type runningEngine struct {
	*engine.Process
	client        *relay.Client
	ownClient     *relay.Client       // the runner's own: few at a time and no streams, so connections to every engine are kept
	media         *mmcache.Attachment // nil: uncached
	queue         *batch.Batcher      // nil for models without one
	cutter        *batch.RerankCutter // nil unless it reranks and counts tokens
	permits       *fairqueue.Queue    // bounds its concurrent requests
	loopPath      string              // see host.Features
	files         *files              // held while the engine runs
	conversations *conversations.Engine
	save          sync.Once          // of conversations
	slots         *engineslots.Table // nil: the engine chooses them
}

// Stop saves the engine's conversations and stops it, see [engine.Process.Stop].
func (r *runningEngine) Stop(ctx context.Context) error {
	r.save.Do(func() {
		select {
		case <-r.Done():
		default:
			r.conversations.Save(ctx)
		}
	})
	return r.Process.Stop(ctx)
}

// Features implements [host.Engine].
func (r *runningEngine) Features() host.Features {
	return host.Features{
		Permits: r.permits, Embeddings: r.queue, RerankCutter: r.cutter, Media: r.media, Slots: r.slots, Conversations: r.conversations, LoopPath: r.loopPath,
	}
}

// idleConn is how long an unused connection to an engine is kept: llama-server and vLLM close theirs after 5 s.
const idleConn = 3 * time.Second

// maxConcurrent returns the maximum number of an engine's concurrent requests. The others wait in the runner, where
// they cost less and API keys take turns. llama-server gets as many as it computes in parallel, plus one that is ready
// to start; its few other threads stay free for reads of its state. For other engines the limit only bounds their open
// files.
func maxConcurrent(family string, p plan.Plan) int {
	const defaultParallel, maxOpenFiles = 4, 512
	if family == recipe.LlamaCpp || family == recipe.Standin && p.Parallel > 0 {
		return cmp.Or(p.Parallel, defaultParallel) + 1
	}
	return max(maxOpenFiles, p.Parallel)
}

func newRunning(p *engine.Process, media *mmcache.Attachment) *runningEngine {
	s := p.Spec()
	cfg := relay.Config{
		Addr:           strings.TrimPrefix(p.BaseURL(), "http://"),
		ConnectTimeout: 5 * time.Second, // if the backlog is full, the kernel retries after a second
		IdleTimeout:    idleConn,
	}
	if s.Recipe.Listen == recipe.ListenSocket {
		cfg.Network, cfg.Addr = "unix", s.Socket
	}
	kept := relay.New(cfg)
	cfg.Single = s.Recipe.Connections != recipe.ConnectionsKept
	run := &runningEngine{Process: p, client: relay.New(cfg), ownClient: kept, media: media}
	if f := s.Recipe.Family(); f == recipe.LlamaCpp || f == recipe.Standin {
		run.loopPath = "/slots"
	}
	return run
}

// closeAfterExit waits until the engine has exited, then closes its resources.
func (r *runningEngine) closeAfterExit() {
	<-r.Done()
	r.conversations.Close()
	if r.queue != nil {
		r.queue.Close()
	}
	r.client.Close()
	r.ownClient.Close()
	r.media.Detach()
	r.files.release()
}

// Command returns the engine's command line, quoted like recipe.JoinArgs, without its key.
func (r *runningEngine) Command() string {
	args := make([]string, 0, len(r.Argv()))
	for _, a := range r.Argv() {
		if key := r.APIKey(); key != "" && strings.Contains(a, key) {
			a = strings.ReplaceAll(a, key, "***")
		}
		args = append(args, a)
	}
	return recipe.JoinArgs(args)
}

// Client returns the client for the engine. It is closed once the engine has exited.
func (r *runningEngine) Client() *relay.Client { return r.client }
