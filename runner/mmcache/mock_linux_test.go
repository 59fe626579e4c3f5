package mmcache

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"reveille/testenv/kit"
)

// sanitize makes a driver report invalid accesses, leaks and undefined behavior.
var sanitize = []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"}

var (
	driverOnce sync.Once
	driverDir  string // removed by TestMain
)

// driver builds an engine without a model, with the interposer before a mock libmtmd, all under sanitizers.
func driver(t testing.TB) string {
	t.Helper()
	driverOnce.Do(func() {
		dir, err := os.MkdirTemp("", "mmdriver")
		if err != nil {
			t.Fatal(err)
		}
		shared := append([]string{"-shared"}, sanitize...)
		compile(t, filepath.Join(dir, "libllama.so"), shared, "testdata/mock/libllama.c")
		compile(t, filepath.Join(dir, "libmtmd.so"), shared, "testdata/mock/libmtmd.c")
		compile(t, filepath.Join(dir, LibraryName), shared, "interpose/*.c")
		// Linking it first gives it the place of LD_PRELOAD, and lets the sanitizer's own library come before.
		compile(t, filepath.Join(dir, "driver"), append([]string{
			"-L" + dir, "-Wl,-rpath," + dir, "-Wl,--no-as-needed",
			"testdata/mock/driver.c", filepath.Join(dir, LibraryName), filepath.Join(dir, "libmtmd.so"), filepath.Join(dir, "libllama.so"),
		}, sanitize...))
		driverDir = dir
	})
	if driverDir == "" {
		t.Skip("the driver was not built")
	}
	return filepath.Join(driverDir, "driver")
}

// tested is a driver's report.
type tested struct{ answered, encodes, wrong int }

// drive runs the driver with a socket, or without one if it is "". The driver must exit with 0 and without sanitizer
// reports.
func drive(t testing.TB, env []string, args ...string) tested {
	t.Helper()
	cmd := exec.Command(driver(t), args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Signal(syscall.SIGABRT) })
	err := cmd.Wait()
	hung.Stop()
	if err != nil {
		t.Fatalf("driver %v: %v\n%s", args, err, errs.String())
	}
	var r tested
	if _, err := fmt.Sscanf(out.String(), "answered %d encodes %d wrong %d", &r.answered, &r.encodes, &r.wrong); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if r.wrong != 0 {
		t.Errorf("driver %v: %d floats are wrong", args, r.wrong)
	}
	if testing.Verbose() && errs.Len() > 0 {
		t.Log(errs.String())
	}
	return r
}

// environ returns an attachment's environment without LD_PRELOAD, which the driver does not need.
func (a *Attachment) environ(more ...string) []string {
	env := a.Env()
	out := []string{EnvPreload + "="}
	for _, k := range []string{EnvSocket, EnvLookupMS, EnvEncodeMS} {
		out = append(out, k+"="+env[k])
	}
	return append(out, more...)
}

func testAttachment(t testing.TB, s *Server) *Attachment {
	t.Helper()
	a, err := s.listen("mock", Namespace{Pool: "main", Model: "mock.gguf+mmproj.gguf", Sig: 0x1122334455667788}, identified)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Detach)
	return a
}

func TestInterposerCachesForAMockEngine(t *testing.T) {
	for _, c := range []struct {
		name     string
		args     string
		answered int
		encodes  int // of two runs
	}{
		{"one picture", "", 1, 1},
		{"again in the same process", "requests=5", 5, 1},
		{"several in a request", "each=3 distinct=3 requests=2", 6, 3},
		{"one picture twice in a request", "each=4 distinct=2", 4, 2},
		{"half of a batch seen", "each=2 distinct=3 requests=3 batch=8", 6, 3},
		{"a batch", "each=6 distinct=6 batch=8", 6, 6},
		{"slices", "slices=5", 5, 5},
		{"slices over several batches", "slices=5 batch=2", 5, 5},
		{"slices in one batch, two pictures", "slices=3 batch=8 each=2 distinct=2", 6, 6},
		{"slices, one picture twice, once over two batches", "slices=3 batch=4 each=2 distinct=1", 6, 4},
		{"sounds", "audio=1 each=2 distinct=2", 2, 2},
		{"sounds of several chunks", "audio=1 slices=3", 3, 3},
		{"older functions", "old=1 each=2 distinct=2 requests=2", 4, 2},
		{"older functions, slices", "old=1 slices=4", 4, 4},
		{"one id for two pictures: they get new names", "each=2 distinct=2 one_id=1", 2, 2},
		{"one id for pictures of several requests", "requests=6 distinct=3 one_id=1", 6, 3},
		{"no ids: not cached", "no_id=1", 1, 2},
		{"a bitmap without bytes: not cached", "each=2 distinct=2 lazy=1", 2, 4},
		{"failing encoder", "fail=1", 0, 0},
		{"clients that leave", "leave=1 requests=4 distinct=4", 0, 0},
		{"many threads", "threads=8 requests=64 distinct=4 each=2", 128, 4},
		{"many threads and slices", "threads=4 requests=16 distinct=16 slices=3 batch=2", 48, 48},
		{"large picture", "pixels=1500", 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, nil)
			a := testAttachment(t, s)
			args := strings.Fields(c.args)
			first := drive(t, a.environ(), args...)
			second := drive(t, a.environ(), args...)
			if first.answered != c.answered || second.answered != c.answered {
				t.Errorf("answered %d and %d, want %d", first.answered, second.answered, c.answered)
			}
			if got := first.encodes + second.encodes; got != c.encodes {
				t.Errorf("%d and %d encodes, want %d in all", first.encodes, second.encodes, c.encodes)
			}
			kit.Eventually(t, "the end of all encodings", func() bool {
				s.encodings.mu.Lock()
				defer s.encodings.mu.Unlock()
				return len(s.encodings.m) == 0
			})
		})
	}
}

// TestInterposerLeavesUnknownEnginesAlone runs engines that cannot be cached, or that have no runner to ask.
func TestInterposerLeavesUnknownEnginesAlone(t *testing.T) {
	s := newServer(t, nil)
	a := testAttachment(t, s)
	for name, c := range map[string]struct {
		env  []string
		args string
	}{
		"two widths":   {a.environ(), "requests=3 width2=32"},
		"no socket":    {[]string{EnvSocket + "="}, "requests=3"},
		"wrong socket": {[]string{EnvSocket + "=" + filepath.Join(t.TempDir(), "none.sock")}, "requests=3"},
		"long path":    {[]string{EnvSocket + "=/" + strings.Repeat("x", 300)}, "requests=3"},
		"bad numbers":  {[]string{EnvSocket + "=/none", EnvLookupMS + "=x", EnvEncodeMS + "=-1"}, "requests=3"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := drive(t, c.env, strings.Fields(c.args)...); got.answered != 3 || got.encodes != 3 {
				t.Errorf("%+v", got)
			}
		})
	}
	if n := s.m.lookups.Get(); n != 0 {
		t.Errorf("%d look-ups", n)
	}
}

// TestConcurrentRequestsShareAnEncode sends ten concurrent requests with one new medium. They cause one encode, within
// a process and across two.
func TestConcurrentRequestsShareAnEncode(t *testing.T) {
	s := newServer(t, nil)
	a, b := testAttachment(t, s), testAttachment(t, s)
	args := []string{"threads=10", "requests=10", "encode_ms=300"}
	results := make([]tested, 2)
	var wg sync.WaitGroup
	for i, x := range []*Attachment{a, b} {
		wg.Go(func() { results[i] = drive(t, x.environ(), args...) })
	}
	wg.Wait()
	if n := results[0].encodes + results[1].encodes; n != 1 || results[0].answered+results[1].answered != 20 {
		t.Errorf("%+v: want one encode and 20 responses", results)
	}
	hits, misses := a.Counts()
	hits2, misses2 := b.Counts()
	if hits+hits2 != 19 || misses+misses2 != 1 {
		t.Errorf("hits %d, misses %d", hits+hits2, misses+misses2)
	}
}

// TestModelsDoNotShareEntries sends the same pictures to two models of different width and to two of equal width.
func TestModelsDoNotShareEntries(t *testing.T) {
	s := newServer(t, nil)
	for i, width := range []int{16, 24, 16} {
		a, err := s.listen("m"+strconv.Itoa(i), Namespace{Pool: "main", Model: "m" + strconv.Itoa(i), Sig: Sig(i)}, identified)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Detach)
		args := []string{"width=" + strconv.Itoa(width)}
		if got := drive(t, a.environ(), args...); got.encodes != 1 {
			t.Errorf("model %d: %+v", i, got)
		}
		if got := drive(t, a.environ(), args...); got.encodes != 0 {
			t.Errorf("model %d again: %+v", i, got)
		}
	}
}
