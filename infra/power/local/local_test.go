package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/local"
	"reveille/infra/power/waketest"
	"reveille/testenv/kit"
)

// TestMain also acts as the program that the driver starts: the test binary plays a runner when asked to.
func TestMain(m *testing.M) {
	switch os.Getenv("PLAY") {
	case "runner":
		playRunner()
	case "parent":
		playParent()
	default:
		goleak.VerifyTestMain(m)
	}
}

// playRunner records its start in a file and waits for SIGTERM, or ignores it.
func playRunner() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if os.Getenv("GRANDCHILD") != "" {
		c := exec.Command("sleep", "600")
		if err := c.Start(); err != nil {
			panic(err)
		}
		fmt.Println("grandchild", c.Process.Pid)
	}
	f, err := os.OpenFile(os.Getenv("STARTS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(f, os.Getpid())
	fmt.Println("runner up")
	for range stop {
		if os.Getenv("STUBBORN") == "" {
			os.Exit(0)
		}
	}
}

// playParent starts a child with the driver and hangs until it is killed.
func playParent() {
	d := local.New(local.Config{Output: os.Stdout, Command: func(catalog.Host) (local.Command, error) {
		return local.Command{Argv: []string{os.Args[0]}, Env: append(os.Environ(), "PLAY=runner")}, nil
	}})
	if err := d.Wake(context.Background(), host); err != nil {
		panic(err)
	}
	select {}
}

var host = catalog.Host{Name: "local", Driver: catalog.DriverLocal}

// starts reads the PIDs of the runners that were started.
func starts(file string) (pids []int) {
	b, _ := os.ReadFile(file)
	for _, line := range strings.Fields(string(b)) {
		pid, _ := strconv.Atoi(line)
		pids = append(pids, pid)
	}
	return pids
}

func driver(t *testing.T, cfg local.Config, env ...string) (d *local.Driver, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "starts")
	cfg.Command = func(catalog.Host) (local.Command, error) {
		return local.Command{Argv: []string{os.Args[0]}, Env: append(append(os.Environ(), "PLAY=runner", "STARTS="+file), env...)}, nil
	}
	d = local.New(cfg)
	t.Cleanup(func() { _ = d.Close() })
	return d, file
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	return f[0] != "Z" && f[0] != "X"
}

func TestContract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		d, file := driver(t, local.Config{MinLife: 30 * time.Millisecond})
		up := 0
		return waketest.Fixture{
			Driver: d, Host: host, Starts: func() int { return len(starts(file)) },
			// Wait until the runner reports that it is up: an earlier SIGTERM would end it before it can count itself.
			Play: func(p power.Power) {
				if p != power.On {
					return
				}
				kit.Eventually(t, "the runner is up", func() bool {
					pids := starts(file)
					up = len(pids)
					return up > 0 && (d.PID("local") == 0 || pids[up-1] == d.PID("local"))
				})
			},
		}
	})
}

func TestAProgramThatCannotStart(t *testing.T) {
	for name, argv := range map[string][]string{
		"missing":      {"/nonexistent/program"},
		"no command":   {},
		"ends at once": {"/bin/sh", "-c", "echo bad flag --frobnicate >&2; exit 3"},
	} {
		t.Run(name, func(t *testing.T) {
			d := local.New(local.Config{MinLife: 10 * time.Second, Command: func(catalog.Host) (local.Command, error) { return local.Command{Argv: argv}, nil }})
			defer d.Close()
			err := d.Wake(t.Context(), host)
			if !errors.Is(err, power.ErrFailed) {
				t.Fatal("wake:", err)
			}
			if name == "ends at once" && !strings.Contains(err.Error(), "exit status 3: bad flag --frobnicate") {
				t.Error("no last output in:", err)
			}
			if p, _ := d.State(t.Context(), host); p != power.Off {
				t.Error("state:", p)
			}
		})
	}
}

func TestAnUnaskedEndIsTold(t *testing.T) {
	told := make(chan error, 1)
	var out kit.Buffer
	d, file := driver(t, local.Config{Output: &out, OnExit: func(h string, err error) { told <- fmt.Errorf("%s: %w", h, err) }})
	must(t, d.Wake(t.Context(), host))
	kit.Eventually(t, "a start", func() bool { return len(starts(file)) == 1 && strings.Contains(out.String(), "runner up") })
	must(t, syscall.Kill(d.PID("local"), syscall.SIGKILL))
	select {
	case err := <-told:
		if !strings.Contains(err.Error(), "local: signal: killed") {
			t.Error("unexpected exit:", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the exit was not reported")
	}
	must(t, d.Wake(t.Context(), host))
	kit.Eventually(t, "another start", func() bool { return len(starts(file)) == 2 })
	must(t, d.Sleep(t.Context(), host))
	select {
	case err := <-told:
		t.Error("a sleep was reported as an unexpected exit:", err)
	default:
	}
}

func TestAStubbornChildAndItsGroupAreKilled(t *testing.T) {
	var out kit.Buffer
	d, file := driver(t, local.Config{Grace: 200 * time.Millisecond, Output: &out}, "STUBBORN=1", "GRANDCHILD=1")
	must(t, d.Wake(t.Context(), host))
	kit.Eventually(t, "a start", func() bool { return len(starts(file)) == 1 && strings.Contains(out.String(), "runner up") })
	var grandchild int
	_, err := fmt.Sscanf(out.String(), "grandchild %d", &grandchild)
	must(t, err)
	must(t, d.Sleep(t.Context(), host))
	kit.Eventually(t, "all gone", func() bool { return !alive(starts(file)[0]) && !alive(grandchild) })
}

func TestASleepGoesOnWithoutItsCaller(t *testing.T) {
	d, file := driver(t, local.Config{Grace: 300 * time.Millisecond}, "STUBBORN=1")
	must(t, d.Wake(t.Context(), host))
	kit.Eventually(t, "a start", func() bool { return len(starts(file)) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Sleep(ctx, host); !errors.Is(err, power.ErrStopping) {
		t.Fatal("sleep:", err)
	}
	if err := d.Wake(ctx, host); !errors.Is(err, power.ErrStopping) && err != nil {
		t.Fatal("wake of a stopping host:", err)
	}
	must(t, d.Wake(t.Context(), host)) // waits for the end of the first
	kit.Eventually(t, "another start", func() bool { return len(starts(file)) == 2 })
}

func TestCloseEndsAllAndStartsNoMore(t *testing.T) {
	d, file := driver(t, local.Config{})
	for i := range 3 {
		must(t, d.Wake(t.Context(), catalog.Host{Name: fmt.Sprint("host-", i)}))
	}
	kit.Eventually(t, "all started", func() bool { return len(starts(file)) == 3 })
	must(t, d.Close())
	must(t, d.Close())
	for _, pid := range starts(file) {
		if alive(pid) {
			t.Error("a child remains:", pid)
		}
	}
	if err := d.Wake(t.Context(), host); !errors.Is(err, power.ErrClosed) {
		t.Error("wake after close:", err)
	}
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("the parent-death signal is Linux only")
	}
	file := filepath.Join(t.TempDir(), "starts")
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "PLAY=parent", "STARTS="+file)
	must(t, parent.Start())
	defer parent.Wait()
	kit.Eventually(t, "a start", func() bool { return len(starts(file)) == 1 })
	must(t, parent.Process.Kill())
	kit.Eventually(t, "the child is gone", func() bool { return !alive(starts(file)[0]) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
