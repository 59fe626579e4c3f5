package engine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/runner/sandbox"
	"reveille/testenv/kit"
)

// TestMain plays three roles: the tests, an engine with bad manners, and a runner that can be killed.
func TestMain(m *testing.M) {
	switch os.Getenv("ENGINE_TEST_ROLE") {
	case "engine":
		syscall.Exit(engineMain(os.Args[1:])) // not os.Exit, which under -cover prints an extra line
	case "runner":
		runnerMain()
	default:
		goleak.VerifyTestMain(m)
	}
}

// engineMain is the engine: it does what its flags say.
func engineMain(args []string) int {
	fl := flag.NewFlagSet("engine", flag.ExitOnError)
	host := fl.String("host", "", "")
	port := fl.Int("port", 0, "")
	load := fl.Duration("load", 0, "time during which it responds with 503")
	say := fl.String("say", "", "print this")
	exit := fl.Int("exit", -1, "then exit so")
	sig := fl.Int("signal", 0, "then die by this signal")
	deaf := fl.Bool("deaf", false, "never listen")
	dots := fl.Bool("dots", false, "print dots without an end of line")
	chatty := fl.Bool("chatty", false, "print a line for each request")
	ignoreTerm := fl.Bool("ignore-term", false, "")
	lastWords := fl.String("last-words", "", "print this at SIGTERM, then exit")
	forkPID := fl.String("fork", "", "start a grandchild and write its pid to this file")
	tidy := fl.String("tidy", "", "start a grandchild that removes this file when this process is gone")
	write := fl.String("write", "", "create this file")
	dump := fl.Bool("dump", false, "print the environment")
	_ = fl.Parse(args)

	if *ignoreTerm {
		signal.Ignore(syscall.SIGTERM)
	}
	if *lastWords != "" {
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		go func() {
			<-term
			fmt.Println(*lastWords)
			syscall.Exit(1)
		}()
	}
	if *forkPID != "" {
		child := exec.Command(os.Args[0], "-deaf", "-ignore-term")
		child.Stdout = os.Stdout // keeps the log pipe open
		if child.Start() != nil {
			return 9
		}
		tmp := *forkPID + ".tmp"
		_ = os.WriteFile(tmp, []byte(strconv.Itoa(child.Process.Pid)), 0o600)
		_ = os.Rename(tmp, *forkPID)
	}
	if *tidy != "" {
		child := exec.Command("/bin/sh", "-c", "trap '' TERM; echo; cat; sleep 0.1; rm "+*tidy)
		_, errIn := child.StdinPipe()
		ready, errOut := child.StdoutPipe()
		if errors.Join(errIn, errOut) != nil || child.Start() != nil {
			return 9
		}
		_, _ = ready.Read(make([]byte, 1)) // it ignores SIGTERM
	}
	if *write != "" {
		_ = os.WriteFile(*write, nil, 0o666)
	}
	if *dump {
		fmt.Println(strings.Join(os.Environ(), "\n"))
	}
	if *say != "" {
		fmt.Println(*say)
	}
	if *sig != 0 {
		// The Go runtime turns most signals into an exit status, so another program takes this one's place first.
		_ = syscall.Exec("/bin/sh", []string{"sh", "-c", "kill -" + strconv.Itoa(*sig) + " $$"}, nil)
		return 6
	}
	if *exit >= 0 {
		return *exit
	}
	for *dots {
		fmt.Print(".")
		time.Sleep(20 * time.Millisecond)
	}
	if *deaf {
		time.Sleep(time.Hour)
	}
	started := time.Now()
	network, addr := "tcp", net.JoinHostPort(*host, strconv.Itoa(*port))
	if strings.HasSuffix(*host, ".sock") {
		network, addr = "unix", *host
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		fmt.Println(err)
		return 8
	}
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if *chatty {
			fmt.Println("request", r.Method, r.URL.Path)
		}
		switch {
		case os.Getenv("TEST_KEY") != "" && r.Header.Get("Authorization") != "Bearer "+os.Getenv("TEST_KEY"):
			w.WriteHeader(http.StatusUnauthorized)
		case time.Since(started) < *load:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	return 7
}

// runnerMain starts one engine with a grandchild, prints the engine's pid and waits to be killed.
func runnerMain() {
	marker, err := OpenMarker(os.Args[1])
	if err != nil {
		panic(err)
	}
	log := slog.New(slog.DiscardHandler)
	sb, err := sandbox.New(sandbox.Config{Mode: sandbox.Auto, Memory: 1 << 30, Log: log})
	if err != nil {
		panic(err)
	}
	cfg := Config{Logger: log, Spawner: NewSpawner(sb), Marker: marker}
	spec := testSpec("-fork", os.Args[2])
	spec.Recipe.Sandbox.Write = []string{filepath.Dir(os.Args[2])}
	p, err := Start(context.Background(), spec, cfg)
	if err != nil {
		panic(err)
	}
	if err := p.EnsureReady(context.Background()); err != nil {
		panic(err)
	}
	fmt.Println(p.PID())
	select {}
}

// testSpec is an engine of this test binary with the given flags.
func testSpec(flags ...string) Spec {
	self, _ := os.Executable()
	return Spec{
		Recipe: recipe.Recipe{
			Name:       "test",
			Command:    []recipe.Group{{self}, {"-host", "{host}"}, {"-port", "{port}"}, {"{backend_flags}"}, {"{type_flags}"}},
			Env:        map[string]string{"ENGINE_TEST_ROLE": "engine", "TEST_KEY": "{api_key}"},
			Types:      []policy.Type{policy.LLM},
			TypeFlags:  map[policy.Type]recipe.List[string]{policy.LLM: flags},
			HealthPath: "/health",
			Checkpoint: recipe.CheckpointAny,
			StopGrace:  20 * time.Second, // longer than any test waits: what ends earlier ended by SIGTERM
			Errors:     recipe.Shipped()["llamacpp"].Errors,
		},
		Model: "m", Checkpoint: "/models/m.gguf", Type: policy.LLM,
	}
}

func testConfig(t *testing.T) Config {
	s := NewSpawner(nil)
	t.Cleanup(s.Close)
	return Config{Logger: slog.New(slog.DiscardHandler), Spawner: s, Environ: os.Environ(), SocketDir: t.TempDir()}
}

// start starts an engine that is killed at the end of the test.
func start(t *testing.T, spec Spec, cfg Config) *Process {
	t.Helper()
	p, err := Start(t.Context(), spec, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := p.Kill(ctx); err != nil {
			t.Errorf("Kill: %v", err)
		}
	})
	return p
}

// within is a context that ends later than anything takes on a slow day.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// pidIn reads the pid a helper wrote to a file.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	var pid int
	kit.Eventually(t, "pid in "+filepath.Base(path), func() bool {
		b, err := os.ReadFile(path)
		if err == nil {
			pid, err = strconv.Atoi(string(b))
		}
		return err == nil
	})
	return pid
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	s, ok := readStat(pid)
	return ok && !s.dead()
}
