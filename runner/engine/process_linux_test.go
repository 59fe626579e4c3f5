package engine

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"reveille/infra/recipe"
)

func TestEngineStartsServesAndStops(t *testing.T) {
	p := start(t, testSpec("-load", "200ms"), testConfig(t))
	select {
	case <-p.ready:
		t.Error("ready immediately")
	default:
	}
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(p.started); d < 200*time.Millisecond {
		t.Errorf("ready after %v", d)
	}
	if s, ok := readStat(p.PID()); !ok || s.pgrp != p.PID() {
		t.Errorf("stat = %+v, want its own group, %d", s, p.PID())
	}
	if len(p.APIKey()) != 64 {
		t.Errorf("key of %d characters", len(p.APIKey()))
	}
	resp, err := http.Get(p.BaseURL() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the key: status %d", resp.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()

	var wg sync.WaitGroup
	for range 4 { // any number of stops
		wg.Go(func() {
			if err := p.Stop(within(t)); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
	}
	wg.Wait()
	select {
	case <-p.Done():
	default:
		t.Error("not done after the stop")
	}
	if p.Err() != nil || alive(p.PID()) {
		t.Errorf("err %v, alive %v", p.Err(), alive(p.PID()))
	}
	if err := p.EnsureReady(within(t)); !errors.Is(err, ErrStopped) {
		t.Errorf("EnsureReady after the stop = %v", err)
	}
}

// A program that took the port before the engine did is not taken for it, and gets no request, not even the key.
func TestStrangerOnThePortFailsTheLoad(t *testing.T) {
	p := start(t, testSpec("-deaf"), testConfig(t))
	if port := p.Spec().Port; port < firstPort || port >= firstPort+portCount {
		t.Errorf("port %d", port)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(p.Spec().Host, strconv.Itoa(p.Spec().Port)))
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	stranger := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) })}
	var wg sync.WaitGroup
	wg.Go(func() { _ = stranger.Serve(l) })
	if err := p.EnsureReady(within(t)); !errors.Is(err, ErrPortTaken) {
		t.Errorf("EnsureReady = %v", err)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the stranger got %d requests", n)
	}
	_ = stranger.Close()
	wg.Wait()
}

func TestEngineListensOnASocket(t *testing.T) {
	spec := testSpec()
	spec.Recipe.Listen = recipe.ListenSocket
	p := start(t, spec, testConfig(t))
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	socket := p.Spec().Socket
	if _, err := os.Stat(socket); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("socket left: %v", err)
	}
}

func TestLogLineMakesTheEngineReady(t *testing.T) {
	over, err := recipe.Parse([]byte("x: {ready: {log: 'model (is )?loaded'}}"))
	if err != nil {
		t.Fatal(err)
	}
	spec := testSpec("-deaf", "-say", "all models loaded, or: model is loaded")
	spec.Recipe.Ready = over["x"].Ready
	p := start(t, spec, testConfig(t))
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
}

// The log can lag behind what makes an engine ready.
func TestLoadIsCompleteOnceItsBuffersAreKnown(t *testing.T) {
	over, err := recipe.Parse([]byte("x: {ready: {log: loaded}}"))
	if err != nil {
		t.Fatal(err)
	}
	spec := testSpec()
	spec.Recipe.Ready, spec.ReportsBuffers = over["x"].Ready, true
	spec.Recipe.Command = []recipe.Group{{"/bin/sh", "-c", "echo loaded; sleep 0.2; echo 'load: CPU model buffer size = 1.00 MiB'; exec sleep 100"}}
	p := start(t, spec, testConfig(t))
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	if known, err := p.CheckGPU(); !known || !errors.Is(err, ErrNoGPU) {
		t.Errorf("%v, %v", known, err)
	}
}

func TestFailedLoadHasItsCause(t *testing.T) {
	for _, tt := range []struct {
		name   string
		flags  []string
		is     error // nil: an ExitError and nothing more
		code   int
		signal syscall.Signal
		text   string
	}{
		{"exits", []string{"-say", "bad weather", "-exit", "3"}, nil, 3, 0, "engine exited with status 3: bad weather"},
		{"names its error above others", []string{"-exit", "3", "-say", "0.01 I loading\n(EngineCore pid=7) ERROR [core.py:70] ValueError: bad weather\n" +
			"(EngineCore pid=7) ERROR [core.py:80] EngineCore failed to start.\n" +
			"(EngineCore pid=7) ERROR [core.py:80] Traceback (most recent call last):\n" +
			"Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.\n" +
			"(APIServer pid=1) Traceback (most recent call last):\n(APIServer pid=1)   File \"/x/errors.py\", line 4, in main\n(APIServer pid=1)     raise RuntimeError(\n" +
			"(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n" +
			"    For further information visit https://example.com/value_error\nbye"},
			nil, 3, 0, "engine exited with status 3: (EngineCore pid=7) ERROR [core.py:70] ValueError: bad weather"},
		{"exits in order without serving", []string{"-exit", "0"}, nil, 0, 0, "engine exited with status 0"},
		{"dies by signal", []string{"-signal", "4"}, nil, -1, syscall.SIGILL, "engine was ended by SIGILL"},
		{"file not found", []string{"-say", "gguf_init_from_file: failed to open GGUF file '/models/m.gguf'", "-exit", "1"},
			ErrFileNotFound, 1, 0, "model file not found: m.gguf"},
		{"a signal outweighs a file message", []string{"-say", "gguf_init_from_file: failed to open GGUF file", "-signal", "6"},
			nil, -1, syscall.SIGABRT, "engine was ended by SIGABRT: gguf_init_from_file: failed to open GGUF file"},
		{"out of memory", []string{"-say", "cudaMalloc failed: out of memory", "-exit", "1"},
			ErrOutOfMemory, 1, 0, "engine out of memory"},
		{"out of memory, by abort", []string{"-say", "what(): std::bad_alloc", "-signal", "6"},
			ErrOutOfMemory, -1, syscall.SIGABRT, "engine out of memory"},
		{"out of memory, on Metal", []string{"-say", "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", "-signal", "6"},
			ErrOutOfMemory, -1, syscall.SIGABRT, "engine out of memory"},
		{"pinned memory is not needed", []string{"-say", "ggml_cuda_host_malloc: failed to allocate 1900.00 MiB of pinned memory: invalid argument", "-exit", "1"},
			nil, 1, 0, "engine exited with status 1: ggml_cuda_host_malloc: failed to allocate 1900.00 MiB of pinned memory: invalid argument"},
		{"unsupported", []string{"-say", "unknown model architecture: 'x'", "-exit", "1"},
			ErrRefused, 1, 0, "refused by the engine: see its log"},
		{"an argument that it does not know", []string{"-say", "error: invalid argument: --no-such-arg=/secret", "-exit", "1"},
			ErrRefused, 1, 0, "refused by the engine: it does not know the argument --no-such-arg; change the model's arguments or update the engine"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := start(t, testSpec(tt.flags...), testConfig(t))
			err := p.EnsureReady(within(t))
			if err == nil || err.Error() != tt.text {
				t.Errorf("err = %v, want %q", err, tt.text)
			}
			var exit *ExitError
			if !errors.As(err, &exit) || exit.Code != tt.code || exit.Signal != tt.signal || exit.Early && tt.signal != 0 {
				t.Errorf("exit = %+v, want code %d, signal %v", exit, tt.code, tt.signal)
			}
			var load *LoadError
			if got := errors.As(err, &load); got != (tt.is != nil) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("err = %#v, want one of kind %v", err, tt.is)
			}
			if p.Err() != err { // which is nil until the process is gone
				t.Errorf("Err = %v", p.Err())
			}
		})
	}
}

// An engine that exits at once has exited early, however long the processes that it started take to end.
func TestEarlyExitIsThatOfTheEngineItself(t *testing.T) {
	spec := testSpec()
	spec.Recipe.Command = []recipe.Group{{"/bin/sh", "-c", "trap '' TERM; sleep 100 & exit 3"}}
	err := start(t, spec, testConfig(t)).EnsureReady(within(t))
	if exit, ok := errors.AsType[*ExitError](err); !ok || exit.Code != 3 || !exit.Early {
		t.Errorf("%v, %+v", err, exit)
	}
}

func TestLoadTimeouts(t *testing.T) {
	t.Run("no progress", func(t *testing.T) {
		spec := testSpec("-deaf", "-say", "hello")
		spec.Recipe.StallTimeout = 300 * time.Millisecond
		p := start(t, spec, testConfig(t))
		err := p.EnsureReady(within(t))
		var exit *ExitError
		if !errors.Is(err, ErrLoadTimeout) || !errors.As(err, &exit) || !slices.Equal(exit.Tail, []string{"hello"}) {
			t.Errorf("err = %v, exit %+v", err, exit)
		}
		if alive(p.PID()) {
			t.Error("still alive")
		}
	})
	t.Run("names the last error of the log", func(t *testing.T) {
		spec := testSpec("-deaf", "-say", "ValueError: bad weather\nserving", "-last-words", "KeyboardInterrupt: an error of the end")
		spec.Recipe.StallTimeout = time.Second
		err := start(t, spec, testConfig(t)).EnsureReady(within(t))
		want := "engine load timed out: no progress for 1s; the last error in its log: ValueError: bad weather"
		if !errors.Is(err, ErrLoadTimeout) || err.Error() != want {
			t.Errorf("err = %v, want %q", err, want)
		}
	})
	t.Run("log lines about health checks are not progress", func(t *testing.T) {
		spec := testSpec("-chatty", "-load", "1h")
		spec.Recipe.StallTimeout = 300 * time.Millisecond
		spec.Recipe.LoadTimeout = 20 * time.Second
		err := start(t, spec, testConfig(t)).EnsureReady(within(t))
		if !errors.Is(err, ErrLoadTimeout) || !strings.Contains(err.Error(), "no progress for 300ms") {
			t.Errorf("err = %v, want the stall", err)
		}
	})
	t.Run("progress counts, the whole load is bounded", func(t *testing.T) {
		spec := testSpec("-dots")
		spec.Recipe.StallTimeout = time.Second
		spec.Recipe.LoadTimeout = 2500 * time.Millisecond
		p := start(t, spec, testConfig(t))
		err := p.EnsureReady(within(t))
		if !errors.Is(err, ErrLoadTimeout) || !strings.Contains(err.Error(), "not ready after 2.5s") {
			t.Errorf("err = %v, want the load timeout, not the stall", err)
		}
	})
}

func TestFilesAreCheckedBeforeTheStart(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "there.gguf")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, checkpoint, mmproj, kind, want string }{
		{"absent", filepath.Join(dir, "gone.gguf"), "", recipe.CheckpointFile, "model file not found: gone.gguf"},
		{"no folder in the way", filepath.Join(file, "x.gguf"), "", recipe.CheckpointFile, "model file x.gguf: not a directory"},
		{"a folder is not a file", dir, "", "", "model file not found: " + filepath.Base(dir)},
		{"projector absent", file, filepath.Join(dir, "mm.gguf"), "", "model file not found: mm.gguf"},
		{"a folder is a path", dir, "", recipe.CheckpointPath, ""},
		{"names are not checked", "org/model", "", recipe.CheckpointAny, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := testSpec()
			spec.Checkpoint, spec.MMProj, spec.Recipe.Checkpoint = tt.checkpoint, tt.mmproj, tt.kind
			spec.Recipe.Env["TEST_MODEL"] = "{model}" // only a file that the command uses is checked
			got := ""
			if err := CheckFiles(spec, nil); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("err = %q, want %q", got, tt.want)
			}
		})
	}
}

// A damaged file, of the model or of its projector, fails the load before anything is spawned.
func TestDamagedFileStartsNoEngine(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sound := file("sound.gguf", "GGUF\x03\x00\x00\x00"+strings.Repeat("\x00", 16))
	bad := file("bad.gguf", "GGUF\x03\x00\x00\x00")
	for _, tt := range []struct{ name, checkpoint, mmproj, kind, want string }{
		{"model", bad, "", "", "model file is corrupt: bad.gguf: it is cut off in its header"},
		{"projector", sound, bad, "", "model file is corrupt: bad.gguf: it is cut off in its header"},
		{"names are not checked", bad, "", recipe.CheckpointAny, ""},
		{"sound", sound, sound, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec, cfg := testSpec(), testConfig(t)
			spec.Checkpoint, spec.MMProj, spec.Recipe.Checkpoint = tt.checkpoint, tt.mmproj, tt.kind
			spec.Recipe.Env["TEST_MODEL"] = "{model}" // only a file that the command uses is checked
			p, err := Start(within(t), spec, cfg)
			if p != nil {
				defer func() { _ = p.Kill(within(t)) }()
			}
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != tt.want || (p == nil) != (tt.want != "") {
				t.Errorf("process %v, err = %q, want %q", p != nil, got, tt.want)
			}
			if bad, ok := errors.AsType[*LoadError](err); tt.want != "" && (!ok || !errors.Is(err, ErrCorrupt)) {
				t.Errorf("%+v", bad)
			}
		})
	}
}

func TestExitWhileServingIsReported(t *testing.T) {
	p := start(t, testSpec(), testConfig(t))
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-within(t).Done():
		t.Fatal("death not noticed")
	}
	var exit *ExitError
	if !errors.As(p.Err(), &exit) || exit.Signal != syscall.SIGKILL {
		t.Errorf("err = %v", p.Err())
	}
}

func TestStopEndsTheGroup(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	p := start(t, testSpec("-fork", pidFile), testConfig(t))
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	grandchild := pidIn(t, pidFile)
	if !alive(grandchild) {
		t.Fatal("no grandchild")
	}
	if err := p.Stop(within(t)); err != nil { // the grandchild ignores SIGTERM and holds the log open
		t.Fatal(err)
	}
	if alive(grandchild) || groupAlive(p.PID()) {
		t.Error("a process of the group is left")
	}
}

// TestGroupCleansUp: what an engine started may still clean up after it, however the engine ends.
func TestGroupCleansUp(t *testing.T) {
	for name, args := range map[string][]string{"stopped": nil, "killed": {"-ignore-term"}, "crashed": {"-signal", "9"}} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "segment")
			spec := testSpec(append(args, "-tidy", file, "-write", file)...)
			spec.Recipe.StopGrace = 200 * time.Millisecond
			p := start(t, spec, testConfig(t))
			if err := p.EnsureReady(within(t)); err != nil && name != "crashed" {
				t.Fatal(err)
			}
			_ = p.Stop(within(t))
			if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) || groupAlive(p.PID()) {
				t.Errorf("the file is left: %v", err)
			}
		})
	}
}

func TestStopKillsAnEngineThatIgnoresSIGTERM(t *testing.T) {
	spec := testSpec("-ignore-term")
	spec.Recipe.StopGrace = 200 * time.Millisecond
	p := start(t, spec, testConfig(t))
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begun); d < 200*time.Millisecond {
		t.Errorf("killed after %v, before the grace", d)
	}
}

func TestKillSkipsTheGrace(t *testing.T) {
	p := start(t, testSpec("-ignore-term"), testConfig(t)) // grace 20 s
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stop = %v, want the end of ctx", err)
	}
	if err := p.Kill(within(t)); err != nil {
		t.Fatal(err)
	}
}

func TestStopEndsALoad(t *testing.T) {
	p := start(t, testSpec("-deaf"), testConfig(t))
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := p.EnsureReady(within(t)); !errors.Is(err, ErrStopped) {
		t.Errorf("EnsureReady = %v", err)
	}
}

func TestEnsureReadyDoesNotEndTheLoad(t *testing.T) {
	p := start(t, testSpec("-load", "300ms"), testConfig(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.EnsureReady(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if err := p.EnsureReady(within(t)); err != nil {
		t.Errorf("the load was canceled: %v", err)
	}
}

func TestEngineInheritsOnlyAllowedVariables(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary")
	t.Setenv("HF_HOME", "/hf")
	before := umask()
	file := filepath.Join(t.TempDir(), "made")
	spec := testSpec("-dump", "-write", file)
	spec.APIKey = "feedfacefeedface"
	p := start(t, spec, testConfig(t))
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, l := range p.Log().Tail(-1) {
		text.WriteString(l.Text + "\n")
	}
	env := text.String()
	if strings.Contains(env, "canary") || strings.Contains(env, "feedface") {
		t.Errorf("a secret reached the engine or the log:\n%s", env)
	}
	for _, want := range []string{"HF_HOME=/hf\n", "TEST_KEY=[key]\n", "PATH="} {
		if !strings.Contains(env, want) {
			t.Errorf("%q is missing in\n%s", want, env)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("file made by the engine: %v, %v; want it closed to others", info.Mode(), err)
	}
	if got := umask(); got != before {
		t.Errorf("the runner's own umask became %#o, was %#o", got, before)
	}
}

// umask reads the process's own umask, which can only be done by setting it.
func umask() int {
	m := syscall.Umask(0)
	syscall.Umask(m)
	return m
}

func TestMissingProgramIsReported(t *testing.T) {
	spec := testSpec()
	spec.Program = filepath.Join(t.TempDir(), "llama-server")
	if _, err := Start(t.Context(), spec, testConfig(t)); !errors.Is(err, ErrNoProgram) {
		t.Errorf("err = %v", err)
	}
}

// A program that is there but must not run is not reported as missing.
func TestForbiddenProgramIsReported(t *testing.T) {
	spec := testSpec()
	spec.Program = filepath.Join(t.TempDir(), "llama-server")
	if err := os.WriteFile(spec.Program, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), spec, testConfig(t))
	if !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrNoProgram) {
		t.Errorf("err = %v", err)
	}
}

func TestClosedSpawnerStartsNothing(t *testing.T) {
	s := NewSpawner(nil)
	s.Close()
	cfg := testConfig(t)
	cfg.Spawner = s
	if _, err := Start(t.Context(), testSpec(), cfg); !errors.Is(err, ErrClosed) {
		t.Errorf("err = %v", err)
	}
}

// An engine must not die with the thread of the goroutine that asked for it.
func TestEngineSurvivesItsCallersThread(t *testing.T) {
	cfg := testConfig(t)
	got := make(chan *Process, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		p, err := Start(context.Background(), testSpec(), cfg)
		if err != nil {
			t.Error(err)
		}
		got <- p
	}()
	p := <-got
	if p == nil {
		return
	}
	t.Cleanup(func() { _ = p.Kill(context.Background()) })
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
		t.Errorf("died: %v", p.Err())
	case <-time.After(300 * time.Millisecond):
	}
}

// Engines started at the same moment get different addresses.
func TestManyEnginesRunTogether(t *testing.T) {
	cfg := testConfig(t)
	var wg sync.WaitGroup
	procs := make([]*Process, 8)
	for i := range procs {
		wg.Go(func() {
			p, err := Start(context.Background(), testSpec(), cfg)
			if err != nil {
				t.Error(err)
				return
			}
			if err := p.EnsureReady(within(t)); err != nil {
				t.Error(err)
			}
			procs[i] = p
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, p := range procs {
		if p == nil {
			continue
		}
		if seen[p.BaseURL()] {
			t.Errorf("two engines at %s", p.BaseURL())
		}
		seen[p.BaseURL()] = true
		if err := p.Stop(within(t)); err != nil {
			t.Error(err)
		}
	}
}
