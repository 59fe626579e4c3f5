package mmcache

import (
	"bufio"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// cutter is a proxy between engines and a server that ends each conversation after a random number of bytes.
type cutter struct {
	ln     *net.UnixListener
	to     string
	cuts   atomic.Int64
	wg     sync.WaitGroup
	mu     sync.Mutex
	rnd    *rand.Rand
	closed chan struct{}
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	path := filepath.Join(socketDir(t), "cut.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{ln: ln, to: to, rnd: rand.New(rand.NewPCG(1, 2)), closed: make(chan struct{})}
	c.wg.Go(func() {
		for {
			conn, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			c.wg.Go(func() { c.relay(conn) })
		}
	})
	t.Cleanup(func() {
		close(c.closed)
		_ = ln.Close()
		c.wg.Wait()
	})
	return c
}

func (c *cutter) random(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rnd.IntN(n)
}

func (c *cutter) relay(engine *net.UnixConn) {
	defer func() { _ = engine.Close() }()
	server, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.to, Net: "unix"})
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	c.cuts.Add(1)
	up, down := 1<<30, 1<<30
	if c.random(2) == 0 {
		up = c.random(1500)
	} else {
		down = c.random(1000)
	}
	stall := c.random(40) == 0
	var wg sync.WaitGroup
	one := func(dst, src *net.UnixConn, limit int) {
		full := c.copy(dst, src, limit)
		if full && stall { // go silent without closing
			select {
			case <-c.closed:
			case <-time.After(time.Second):
			}
		}
		_ = engine.Close()
		_ = server.Close()
	}
	wg.Go(func() { one(server, engine, up) })
	wg.Go(func() { one(engine, server, down) })
	wg.Wait()
}

// copy passes on up to limit bytes with their descriptors and reports whether it stopped at the limit.
func (c *cutter) copy(dst, src *net.UnixConn, limit int) bool {
	b, oob := make([]byte, 4096), make([]byte, 256)
	for {
		n, oobn, _, _, err := src.ReadMsgUnix(b, oob)
		if err != nil || n == 0 {
			return false
		}
		var files message // closes what it keeps
		files.keep(oob[:oobn])
		var rights []byte
		if files.file != nil {
			rights = syscall.UnixRights(int(files.file.Fd()))
		}
		send := min(n, limit)
		if send > 0 {
			_, _, err = dst.WriteMsgUnix(b[:send], rights, nil)
		}
		files.close()
		limit -= send
		if err != nil || limit <= 0 {
			return err == nil
		}
	}
}

// TestTruncatedMessagesAreRefused cuts 1,000 conversations at random places. Every request must get a correct response.
func TestTruncatedMessagesAreRefused(t *testing.T) {
	s := newServer(t, nil)
	a := testAttachment(t, s)
	cut := newCutter(t, a.path)
	env := a.environ(EnvSocket+"="+cut.ln.Addr().String(), EnvLookupMS+"=100", EnvEncodeMS+"=100", "REVEILLE_MM_PAUSE_MS=0")
	var n int
	for round := 0; cut.cuts.Load() < 1000; round++ {
		r := drive(t, env, "requests=60", "threads=2", "each=2", "distinct=40", "slices=2", "batch=3", "first="+strconv.Itoa(40*round))
		if r.answered != 240 {
			t.Fatalf("round %d: %+v", round, r)
		}
		n += r.encodes
	}
	t.Logf("%d conversations cut, %d encodes", cut.cuts.Load(), n)
}

// runnerMain is a runner that can be killed. It prints the path of its socket and how many encodes it allowed.
func runnerMain() {
	dir, err := os.MkdirTemp("", "mm")
	if err != nil {
		panic(err)
	}
	s := New(Config{Dir: dir, Log: slog.New(slog.DiscardHandler), EncodeWait: time.Minute})
	a, err := s.listen("m", Namespace{Model: "m"}, identified)
	if err != nil {
		panic(err)
	}
	fmt.Println(a.path)
	for said := int64(0); ; time.Sleep(2 * time.Millisecond) {
		if _, misses := a.Counts(); misses != said {
			said = misses
			fmt.Println("misses", misses)
		}
	}
}

// startRunner starts a runnerMain and returns its socket and its output.
func startRunner(t *testing.T) (*exec.Cmd, string, *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "MMCACHE_TEST_ROLE=runner")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the runner printed nothing")
	}
	path := lines.Text()
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(path)) })
	return cmd, path, lines
}

// TestEngineSurvivesAKilledRunner kills the runner with SIGKILL while one engine encodes and another waits for the
// result.
func TestEngineSurvivesAKilledRunner(t *testing.T) {
	driver(t)
	runner, path, lines := startRunner(t)
	env := []string{EnvSocket + "=" + path, EnvLookupMS + "=20000", EnvEncodeMS + "=60000"}
	var leader, waiter tested
	var wg sync.WaitGroup
	wg.Go(func() { leader = drive(t, env, "encode_ms=3000") })
	if !lines.Scan() || lines.Text() != "misses 1" {
		t.Fatal(lines.Text())
	}
	start := time.Now()
	wg.Go(func() { waiter = drive(t, env, "requests=3") })
	time.Sleep(500 * time.Millisecond) // by now it waits, or will find no runner
	if err := runner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if leader.answered != 1 || waiter.answered != 3 || waiter.encodes != 3 {
		t.Errorf("leader %+v, waiter %+v", leader, waiter)
	}
	if d := time.Since(start); d > 50*time.Second {
		t.Errorf("took %v: an engine waited for the dead runner", d)
	}
}

// TestEngineSurvivesAFrozenRunner checks that a stopped runner costs an engine no more than a few look-up times.
func TestEngineSurvivesAFrozenRunner(t *testing.T) {
	driver(t)
	runner, path, _ := startRunner(t)
	if err := runner.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	got := drive(t, []string{EnvSocket + "=" + path, EnvEncodeMS + "=60000"}, "requests=200")
	if got.answered != 200 || got.encodes != 200 {
		t.Errorf("%+v", got)
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}
