package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/runner/httpapi"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// fasthttp's pool sleeps up to 10 s before it sees that it was stopped, and its clock never ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

func settings(t *testing.T, redis string) Settings {
	return Settings{
		Redis: config.Redis{RedisURL: "redis://" + redis, Pool: "main"}, RunnerSecret: "0123456789abcdef",
		HostSettings: HostSettings{Host: "h", RunnerAddr: "127.0.0.1:0", Devices: "cpu", MaxLoadedModels: "1", StateDir: t.TempDir(), FairAfter: time.Second, DrainTimeout: time.Second, RetireTimeout: time.Second},
	}
}

// running starts a runner and returns its address and how to end it.
func running(t *testing.T, s Settings) (addr string, end func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- Run(ctx, s, slog.New(slog.DiscardHandler), func(a string, _ *httpapi.Server) { ready <- a })
	}()
	end = func() error { stop(); return <-ended }
	select {
	case addr = <-ready:
		return addr, end
	case err := <-ended:
		stop()
		t.Fatal(err)
		return "", nil
	}
}

// A whole life: listening, registered with that address, a model loaded and served; at the end all is gone.
func TestRunnerServesAndDrains(t *testing.T) {
	addr := testenv.Redis(t)
	s := settings(t, addr)
	store, err := state.Open(state.Options{URL: s.RedisURL, Secret: []byte(s.RunnerSecret), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s.Recipes = filepath.Join(t.TempDir(), "recipes.yaml")
	if err := os.WriteFile(s.Recipes, []byte("recipes: {mine: {inherit: standin, command: ["+testenv.Standin(t)+", [--host, '{host}'], [--port, '{port}']]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	executed := filepath.Join(t.TempDir(), "executed")
	c, _, err := catalog.Parse("models.yaml", []byte("recipes: {mine: {inherit: standin, command: [touch, "+executed+"]}}\nmodels: {m: {type: llm, recipe: mine, device: cpu}}"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := os.Stat(executed); err == nil {
			t.Error("the runner executed a command of the published catalog")
		}
	}()
	raw, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.PutCatalog(t.Context(), c.Version, raw, nil); err != nil {
		t.Fatal(err)
	}
	at, end := running(t, s)
	resp, err := http.Get("http://" + at + "/runner/health")
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	var me *state.HostRecord
	kit.Eventually(t, "registration", func() bool {
		snap, err := store.Snapshot(t.Context())
		if err != nil || snap.Hosts["h"] == nil {
			return false
		}
		me = snap.Hosts["h"]
		return me.State == "ready"
	})
	if me.Addr != at || me.Devices != "cpu" {
		t.Errorf("%+v", me)
	}
	kit.Eventually(t, "ticket", func() bool {
		snap, err := store.Snapshot(t.Context())
		if err != nil {
			return false
		}
		_, err = store.Acquire(t.Context(), state.Want{Gateway: "g", Model: "m", Host: "h", Revision: snap.RevisionOf("h", "m"), Unattended: true})
		return err == nil
	})
	kit.Eventually(t, "model", func() bool {
		snap, err := store.Snapshot(t.Context())
		return err == nil && snap.Hosts["h"].Models["m"] != nil && snap.Hosts["h"].Models["m"].State == "loaded"
	})
	if err := end(); err != nil {
		t.Error(err)
	}
	snap, err := store.Snapshot(t.Context())
	if err != nil || snap.Hosts["h"].State != "asleep" || len(snap.Hosts["h"].Models) != 0 {
		t.Errorf("%+v %v", snap.Hosts["h"], err)
	}
	if _, err := http.Get("http://" + at + "/runner/health"); err == nil {
		t.Error("still listening")
	}
	before := snap.Hosts["h"].Generation
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	rdb.FlushAll(t.Context()) // what was lost there is on disk
	_, end = running(t, s)
	kit.Eventually(t, "second life", func() bool {
		snap, err := store.Snapshot(t.Context())
		return err == nil && snap.Hosts["h"] != nil && snap.Hosts["h"].Generation > before
	})
	if err := end(); err != nil {
		t.Error(err)
	}
}

// A second runner of the host ends with a clear word and touches nothing; one of another host shares the folder.
func TestSecondRunnerIsRefused(t *testing.T) {
	s := settings(t, testenv.Redis(t))
	_, end := running(t, s)
	err := Run(t.Context(), s, slog.New(slog.DiscardHandler), nil)
	if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), s.StateDir) {
		t.Errorf("%v", err)
	}
	other := s
	other.HostSettings.Host = "h2"
	_, endOther := running(t, other)
	if err := errors.Join(end(), endOther()); err != nil {
		t.Error(err)
	}
	_, end = running(t, s) // the lock went with the first
	if err := end(); err != nil {
		t.Error(err)
	}
}

// Redis need not be there at the start.
func TestRunnerRegistersWhenRedisIsAvailable(t *testing.T) {
	redis := testenv.StartRedis(t)
	redis.Kill()
	s := settings(t, redis.Addr)
	_, end := running(t, s)
	time.Sleep(300 * time.Millisecond)
	redis.Restart()
	store, err := state.Open(state.Options{URL: s.RedisURL, Secret: []byte(s.RunnerSecret), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	kit.Eventually(t, "registration", func() bool {
		snap, err := store.Snapshot(t.Context())
		return err == nil && snap.Hosts["h"] != nil && snap.Hosts["h"].State == "ready"
	})
	redis.Kill()
	if err := end(); err != nil { // nor at the end
		t.Error(err)
	}
}

// flags reads a runner's command line.
func flags(t *testing.T, args ...string) (s Settings, err error) {
	t.Helper()
	_, err = config.Parse(&s, "runner", "", append(args, "--runner-addr=127.0.0.1:0"))
	return s, err
}

func TestInvalidSettingsAreRefused(t *testing.T) {
	good := HostSettings{
		Host: "gpu-1", RunnerAddr: "10.0.0.1:8090", Devices: "cpu,npu", Labels: "fast, big", MaxLoadedModels: "2 1", MemoryBudget: "cpu=1GiB gpu=20GB",
		NPUSeats: "llm=1 audio=2", CtxSize: 4096, NParallel: 8, BatchDelay: 5 * time.Millisecond, LlamacppBackend: "cpu", FairAfter: time.Second, DrainTimeout: time.Second, RetireTimeout: time.Second,
	}
	p, err := good.parse()
	if err != nil || p.name != "gpu-1" || p.devices != policy.CPU|policy.NPU || len(p.labels) != 2 || p.limits.Of(policy.LLM) != 2 ||
		p.budget[policy.CPU] != 1<<30 || p.budget[policy.GPU] != 20e9 || p.seats[policy.Audio] != 2 || p.options["ctx_size"] != int64(4096) || p.options["n_parallel"] != int64(8) ||
		p.options["batch_delay"] != int64(5) {
		t.Errorf("%+v %v", p, err)
	}
	for want, change := range map[string]func(*HostSettings){
		"--host \"a/../b\"":            func(h *HostSettings) { h.Host = "a/../b" },
		"--devices":                    func(h *HostSettings) { h.Devices = "tpu" },
		"--labels":                     func(h *HostSettings) { h.Labels = "a{b" },
		"--max-loaded-models":          func(h *HostSettings) { h.MaxLoadedModels = "0" },
		"want DEVICE=SIZE":             func(h *HostSettings) { h.MemoryBudget = "=1GiB" },
		"is not a size above 0":        func(h *HostSettings) { h.MemoryBudget = "gpu=much" },
		"want TYPE=NUMBER":             func(h *HostSettings) { h.NPUSeats = "llm=1x" },
		"option ctx_size":              func(h *HostSettings) { h.CtxSize = -5 },
		"option n_parallel":            func(h *HostSettings) { h.NParallel = -1 },
		"option batch_delay":           func(h *HostSettings) { h.BatchDelay = time.Second + time.Millisecond },
		"want whole milliseconds":      func(h *HostSettings) { h.BatchDelay = 1500 * time.Microsecond },
		"n_ubatch 512: want at most":   func(h *HostSettings) { h.NBatch, h.NUbatch = 256, 512 },
		"ctx_size 4096: want at least": func(h *HostSettings) { h.NBatch = 8192 },
		"--fair-after":                 func(h *HostSettings) { h.FairAfter = 0 },
		"--drain-timeout":              func(h *HostSettings) { h.DrainTimeout = -time.Second },
		"--retire-timeout":             func(h *HostSettings) { h.RetireTimeout = 0 },
		"one of this host's addresses": func(h *HostSettings) { h.RunnerAddr = ":8090" },
		"\"0.0.0.0:8090\": gateways":   func(h *HostSettings) { h.RunnerAddr = "0.0.0.0:8090" },
		"--runner-addr \"8090\": want": func(h *HostSettings) { h.RunnerAddr = "8090" },
	} {
		h := good
		change(&h)
		if _, err := h.parse(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%s: %v", want, err)
		}
	}
	h := good
	h.Devices, h.MaxLoadedModels = "tpu", "x"
	if _, err := h.parse(); err == nil || !strings.Contains(err.Error(), "--devices") || !strings.Contains(err.Error(), "--max-loaded-models") {
		t.Errorf("not all mistakes at once: %v", err)
	}
	if err := Run(t.Context(), Settings{HostSettings: good}, slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), "--runner-secret") {
		t.Errorf("without a secret: %v", err)
	}
}
