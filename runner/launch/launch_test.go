package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/runner/devices"
	"reveille/runner/engine"
	"reveille/runner/host"
	"reveille/runner/plan"
	"reveille/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLauncher(t *testing.T) *Launcher {
	t.Helper()
	spawner := engine.NewSpawner(nil)
	t.Cleanup(spawner.Close)
	marker, err := engine.OpenMarker(filepath.Join(t.TempDir(), "engines"))
	if err != nil {
		t.Fatal(err)
	}
	return &Launcher{
		Spawner: spawner, Marker: marker, Finder: engine.Finder{Paths: map[string]string{"standin": testenv.Standin(t)}},
		SocketDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
	}
}

// start starts the stand-in with extra arguments.
func start(ctx context.Context, l *Launcher, m catalog.Model, args string) (host.Engine, error) {
	r := recipe.Shipped()["standin"]
	m.ID, m.Type, m.Devices = "m", policy.LLM, policy.CPU
	m.Options = recipe.Options{"args": args}
	return l.Start(ctx, &m, &r, m.Options, plan.Plan{}, engine.GPUs{})
}

func TestEngineStartsAndServes(t *testing.T) {
	l := newLauncher(t)
	e, err := start(t.Context(), l, catalog.Model{}, "--tokens 3")
	if err != nil {
		t.Fatal(err)
	}
	if e.APIKey() == "" || strings.Contains(e.Command(), e.APIKey()) || !strings.Contains(e.Command(), "--tokens 3") {
		t.Errorf("command %q", e.Command())
	}
	req := &relay.Request{Method: "POST", Path: []byte("/v1/chat/completions"), Body: []byte(`{"messages":[{"role":"user","content":"hi"}]}`), FirstByte: 10 * time.Second}
	req.Add("Authorization", []byte("Bearer "+e.APIKey()))
	req.Add("Content-Type", []byte("application/json"))
	resp, err := e.Client().Do(nil, req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := resp.AppendBody(nil, 1<<20)
	if err != nil || resp.Status() != 200 || !strings.Contains(string(body), "choices") {
		t.Errorf("%d %s %v", resp.Status(), body, err)
	}
	_ = resp.Close()
	for range 2 {
		if err := e.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	<-e.Done()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // the client ends with the engine
		if _, err := e.Client().Do(nil, req); errors.Is(err, relay.ErrClosed) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("client of a dead engine: %v", err)
		}
	}
}

// Only engines known to handle it well get several requests on one connection.
func TestConnectionsFollowTheRecipe(t *testing.T) {
	l := newLauncher(t)
	for connections, idle := range map[string]int{"": 0, recipe.ConnectionsSingle: 0, recipe.ConnectionsKept: 1} {
		r := recipe.Shipped()["standin"]
		r.Connections = connections
		e, err := l.Start(t.Context(), &catalog.Model{ID: "m", Type: policy.LLM, Devices: policy.CPU}, &r, recipe.Options{}, plan.Plan{}, engine.GPUs{})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := e.Client().Do(nil, &relay.Request{Method: "GET", Path: []byte("/health"), FirstByte: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := resp.AppendBody(nil, 1<<20); err != nil {
			t.Error(err)
		}
		_ = resp.Close()
		if got := e.Client().Stats(); got != (relay.Stats{Idle: idle}) {
			t.Errorf("%q: %+v", connections, got)
		}
		if err := e.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestConcurrencyFollowsThePlan(t *testing.T) {
	for _, c := range []struct {
		family   string
		parallel int
		want     int
	}{{"llamacpp", 4, 5}, {"llamacpp", 64, 65}, {"llamacpp", 0, 5}, {"vllm", 4, 512}, {"vllm", 1000, 1000}, {"standin", 0, 512}} {
		if got := maxConcurrent(c.family, plan.Plan{Parallel: c.parallel}); got != c.want {
			t.Errorf("%s, %d at once: %d, want %d", c.family, c.parallel, got, c.want)
		}
	}
}

// llama-server that finds no GPU loads a model into main memory and serves it, slowly. For a model that is to use a GPU
// that is a failed load.
func TestLoadWithoutGPUBuffersFails(t *testing.T) {
	l, r := newLauncher(t), recipe.Shipped()[recipe.LlamaCpp]
	l.Finder = engine.Finder{Paths: map[string]string{recipe.LlamaCpp: testenv.Engines(t).LlamaServer}}
	m := catalog.Model{ID: "m", Type: policy.LLM, Devices: policy.GPU, Checkpoint: testenv.Models(t).Tiny, Recipe: recipe.LlamaCpp}
	t.Setenv("GGML_VK_VISIBLE_DEVICES", "") // none, on a machine with some
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	opts := r.Effective(recipe.Layers{Request: recipe.Options{"ctx_size": int64(512)}})
	e, err := l.Start(t.Context(), &m, &r, opts, plan.Plan{}, engine.GPUs{})
	if err == nil {
		_ = e.Stop(t.Context())
	}
	if _, ok := errors.AsType[*engine.LoadError](err); !ok || !errors.Is(err, engine.ErrNoGPU) || !strings.Contains(err.Error(), "MiB are in main memory") {
		t.Fatalf("a model for the GPU without one: %v, want %v", err, engine.ErrNoGPU)
	}
	m.Devices = policy.CPU
	if e, err = l.Start(t.Context(), &m, &r, opts, plan.Plan{}, engine.GPUs{}); err != nil {
		t.Fatal("the same model for the CPU:", err)
	}
	if err := e.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// A model that can never start is refused before anything is evicted for it.
func TestCheckRefusesModelsThatCannotStart(t *testing.T) {
	l, r, files := newLauncher(t), recipe.Shipped()[recipe.LlamaCpp], testenv.Models(t)
	l.Finder = engine.Finder{Paths: map[string]string{recipe.LlamaCpp: testenv.Engines(t).LlamaServer}}
	clip := filepath.Join(t.TempDir(), "clip.gguf") // without general.type
	text, err := os.ReadFile(files.GemmaVision)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(clip, bytes.Replace(text, []byte("general.type"), []byte("general.typo"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	pointer := filepath.Join(t.TempDir(), "pointer.gguf")
	if err := os.WriteFile(pointer, []byte("version https://git-lfs.github.com/spec/v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ checkpoint, args, mmproj, want string }{
		{files.Tiny, "", "", ""},
		{files.Tiny, "-ngl banana", "", "-ngl"},
		{files.Tiny, "--threads --no-mmap", "", "--threads"},
		{files.Tiny, "--no-mmap --ctx-size", "", "--ctx-size"},
		{files.Tiny, "--pooling wat", "", "--pooling"},
		{files.Tiny, "--grammar-file /nope/nope.gbnf", "", "--grammar-file"},
		{files.Tiny, "-np 0", "", "-np"},
		{files.Tiny, "banana", "", "banana"},
		{files.Tiny, "-fa off -ctv q4_0", "", "flash attention"},
		{files.Tiny, "-fa off -ctv f16 -ngl all --temp .5 --lora adapter.gguf,other.gguf --control-vector " + files.Tiny, "", ""},
		{files.Tiny, "--lora adapter.gguf,/nope/nope.gguf", "", "nope.gguf"},
		{files.Tiny, "--lora-scaled /nope/nope.gguf:2,adapter.gguf:0.5", "", "nope.gguf"},
		{files.Tiny, "--lora " + files.Tiny, "", "not an adapter"},
		{files.Tiny, "-md " + pointer, "", "Git LFS pointer"},
		{files.Tiny, "", files.GemmaVision, "dimension 640, and the model's is 256"},
		{files.Gemma, "", files.GemmaVision, ""},
		{files.Tiny, "", files.TinyVision, ""},
		{files.Tiny, "", files.TinyAudio, ""},
		{files.Tiny, "", files.Tiny, "not a projector"},
		{files.MiniLM, "", "", "embedding"},
		{files.Tiny, "--no-mmap -np 2 --ctx_size 512 --temp -1 --grammar --odd", "", ""},
		{files.Tiny, "--no-mmap --bogus-flag 3", "", "--bogus-flag"},
		{files.Tiny, "-np 2 -zz", "", "-zz"},
		{files.GemmaVision, "", "", "projector"},
		{clip, "", "", "projector"},
	} {
		m := &catalog.Model{ID: "m", Type: policy.LLM, Devices: policy.CPU, Checkpoint: c.checkpoint, MMProj: c.mmproj}
		err := l.Check(t.Context(), m, &r, recipe.Options{"llamacpp_args": c.args})
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, engine.ErrRefused) && !errors.Is(err, engine.ErrFileNotFound) && !errors.Is(err, engine.ErrCorrupt) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// startShort starts a vLLM that finds its KV cache too small.
func startShort(t *testing.T, l *Launcher, opts recipe.Options) (host.Engine, error) {
	r := recipe.Shipped()[recipe.VLLM]
	const text = "ValueError: (4.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.9 GiB)."
	r.Command = []recipe.Group{{"sh", "-c", "echo '" + text + "'; exit 1"}}
	return l.Start(t.Context(), &catalog.Model{ID: "m", Type: policy.LLM, Devices: policy.CPU}, &r, opts, plan.Plan{}, engine.GPUs{})
}

func TestFailedStartLeavesNothing(t *testing.T) {
	l := newLauncher(t)
	bare := recipe.Shipped()["llamacpp"]
	missing := catalog.Model{ID: "m", Type: policy.LLM, Devices: policy.CPU, Checkpoint: filepath.Join(t.TempDir(), "gone.gguf")}
	for name, c := range map[string]struct {
		start func() (host.Engine, error)
		check func(error) bool
	}{
		"fails to load": {
			func() (host.Engine, error) { return start(t.Context(), l, catalog.Model{}, "--fail-load -1") },
			func(err error) bool { var exit *engine.ExitError; return errors.As(err, &exit) },
		},
		"its KV cache is too small for the context": {
			func() (host.Engine, error) { return startShort(t, l, recipe.Options{}) },
			func(err error) bool { return errors.Is(err, engine.ErrOutOfMemory) },
		},
		"its KV cache is set, and too small for the context": {
			func() (host.Engine, error) { return startShort(t, l, recipe.Options{"kv_cache_bytes": int64(4096)}) },
			func(err error) bool { return errors.Is(err, engine.ErrRefused) },
		},
		"no program": {
			func() (host.Engine, error) {
				l := newLauncher(t)
				l.Finder = engine.Finder{Paths: map[string]string{"llamacpp": "/nowhere/llama-server"}}
				return l.Start(t.Context(), &missing, &bare, nil, plan.Plan{}, engine.GPUs{})
			},
			func(err error) bool { return errors.Is(err, engine.ErrNoProgram) },
		},
		"no file": {
			func() (host.Engine, error) {
				l := newLauncher(t)
				l.Finder = engine.Finder{Paths: map[string]string{"llamacpp": testenv.Standin(t)}}
				return l.Start(t.Context(), &missing, &bare, nil, plan.Plan{}, engine.GPUs{})
			},
			func(err error) bool { return errors.Is(err, engine.ErrFileNotFound) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			if e, err := c.start(); e != nil || !c.check(err) {
				t.Errorf("%v %v", e, err)
			}
		})
	}
}

// An engine sees the GPUs that its load was given, in the terms of what the runner's own environment shows.
func TestEngineGetsItsGPUs(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "3,5,6")
	list := "Available devices:\n  CUDA0: X (8107 MiB, 1 MiB free)\n  CUDA1: X (8107 MiB, 1 MiB free)\n  CUDA2: X (8107 MiB, 1 MiB free)\n"
	found := devices.Detect(t.Context(), devices.Config{
		Kinds: policy.GPU, Files: fstest.MapFS{}, LlamaServer: "llama-server", LookupEnv: os.LookupEnv,
		Run: func(context.Context, string, ...string) ([]byte, error) { return []byte(list), nil },
	})
	r := recipe.Shipped()["standin"]
	for want, cards := range map[string]policy.GPUMemory{"5": {1: 0}, "3,6": {0: 0, 2: 0}, "3,5,6": {0: 0, 1: 0, 2: 0}} {
		g := engine.GPUs{Count: len(cards)}
		g.Env, g.Names = found.Select(cards)
		e, err := newLauncher(t).Start(t.Context(), &catalog.Model{ID: "m", Type: policy.LLM, Devices: policy.GPU}, &r, nil, plan.Plan{}, g)
		if err != nil {
			t.Fatal(err)
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", e.PID()))
		if all := strings.Split(string(env), "\x00"); err != nil || !slices.Contains(all, "CUDA_VISIBLE_DEVICES="+want) {
			t.Errorf("%v: %q %v, want %s", cards, all, err, want)
		}
		if err := e.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// When ctx ends, the load stops and the engine is killed.
func TestCanceledStartKillsTheEngine(t *testing.T) {
	l := newLauncher(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	if _, err := start(ctx, l, catalog.Model{}, "--load-time 1h --ignore-sigterm"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if killed, err := l.Marker.KillLeftovers(t.Context()); len(killed) > 0 || err != nil {
		t.Errorf("left behind: %v %v", killed, err)
	}
}

// An embedding model gets a queue if its recipe's family can count tokens; otherwise the log says that it cannot.
func TestOnlyEnginesThatCountTokensHaveAQueue(t *testing.T) {
	l := newLauncher(t)
	var log bytes.Buffer
	set, err := recipe.Shipped().With(map[string]recipe.Recipe{"mine": {Inherit: "standin"}})
	if err != nil {
		t.Fatal(err)
	}
	m, mine := catalog.Model{ID: "m", Type: policy.Embedding, Devices: policy.CPU}, set["mine"]
	l.Finder.Paths["mine"] = testenv.Standin(t)
	e, err := l.Start(t.Context(), &m, &mine, nil, plan.Plan{}, engine.GPUs{})
	if err != nil {
		t.Fatal(err)
	}
	if e.Features().Embeddings == nil {
		t.Error("a recipe that inherits has no queue")
	}
	if err := e.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-e.Done()
	quiet := &Launcher{Log: slog.New(slog.NewTextHandler(&log, nil))}
	other := set["mistralrs"]
	run := new(runningEngine)
	if quiet.addTokenCounting(t.Context(), run, &m, &other, "", nil, plan.Plan{}); run.queue != nil || !strings.Contains(log.String(), "level=INFO") ||
		!strings.Contains(log.String(), "model=m recipe=mistralrs") {
		t.Errorf("%v, log %q", run.queue, log.String())
	}
}

// batch_delay sets the delay of the queue, as logged.
func TestBatchDelayReachesTheQueue(t *testing.T) {
	l := newLauncher(t)
	var log bytes.Buffer
	l.Log = slog.New(slog.NewTextHandler(&log, nil))
	m, r := catalog.Model{ID: "m", Type: policy.Embedding, Devices: policy.CPU}, recipe.Shipped()["standin"]
	e, err := newLauncher(t).Start(t.Context(), &m, &r, nil, plan.Plan{}, engine.GPUs{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for ms, want := range map[any]string{nil: "batch_delay=0s", int64(7): "batch_delay=7ms"} {
		log.Reset()
		run := &runningEngine{Process: e.(*runningEngine).Process, ownClient: e.(*runningEngine).ownClient}
		l.addTokenCounting(t.Context(), run, &m, &r, "", recipe.Options{"batch_delay": ms}, plan.Plan{})
		run.queue.Close()
		if !strings.Contains(log.String(), want) {
			t.Errorf("with %v: log %q lacks %s", ms, log.String(), want)
		}
	}
}

func TestPlanFollowsTheFiles(t *testing.T) {
	files := testenv.Models(t)
	llamacpp := recipe.Shipped()["llamacpp"]
	size := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	l := &Launcher{}
	make := func(m catalog.Model, o recipe.Options) plan.Plan {
		t.Helper()
		m.Devices = policy.CPU
		p, err := l.Plan(&m, &llamacpp, o, plan.Share{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	opts := recipe.Options{"ctx_size": int64(4096)}
	text := make(catalog.Model{Type: policy.LLM, Checkpoint: files.Gemma}, opts)
	if text.Kind != plan.Paged || text.Context != 4096 || text.KVBytes == 0 || text.Need <= size(files.Gemma) {
		t.Errorf("llm: %+v", text)
	}
	projector := files.Reranker // any file: its size counts
	if seeing := make(catalog.Model{Type: policy.LLM, Checkpoint: files.Gemma, MMProj: projector}, opts); seeing.WeightsBytes != text.WeightsBytes+size(projector) ||
		seeing.Need <= text.Need+size(projector) || !seeing.Divided || seeing.Longest != text.Longest {
		t.Errorf("with a projector of %d bytes %+v, without %+v", size(projector), seeing, text)
	}
	if absent := make(catalog.Model{Type: policy.LLM, Checkpoint: files.Gemma, MMProj: "/none"}, opts); absent.WeightsBytes != text.WeightsBytes || !absent.Divided {
		t.Errorf("with a projector that is not here: %+v", absent)
	}
	if embed := make(catalog.Model{Type: policy.Embedding, Checkpoint: files.MiniLM}, nil); embed.Kind != plan.Plain || embed.KVBytes != 0 || embed.Longest != 512 {
		t.Errorf("embedding: %+v", embed)
	}
	if away := make(catalog.Model{Type: policy.LLM, Checkpoint: "s3://b/k"}, nil); away.Kind != plan.Plain || away.Need != 0 {
		t.Errorf("weights elsewhere: %+v", away)
	}
	m := catalog.Model{Type: policy.Embedding, Devices: policy.CPU, Checkpoint: files.MiniLM}
	if _, err := l.Plan(&m, &llamacpp, recipe.Options{"n_batch": int64(64), "n_ubatch": int64(128)}, plan.Share{}); err == nil {
		t.Error("n_ubatch over n_batch was accepted")
	}
}
