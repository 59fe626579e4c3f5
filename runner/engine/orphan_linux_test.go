package engine

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/testenv/kit"
)

// A runner is killed with -9: its engine dies with it, and the next start clears away what the engine had started.
func TestEnginesDieWithTheirRunner(t *testing.T) {
	dir := t.TempDir()
	markPath, pidFile := filepath.Join(dir, "engines"), filepath.Join(dir, "pid")
	runner := exec.Command(os.Args[0], markPath, pidFile)
	runner.Env = append(os.Environ(), "ENGINE_TEST_ROLE=runner")
	runner.Stderr = os.Stderr
	out, err := runner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := runner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	engine, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	grandchild := pidIn(t, pidFile)
	if !alive(engine) || !alive(grandchild) {
		t.Fatal("engine or grandchild not running")
	}

	killedAt := time.Now()
	if err := runner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "the engine of a killed runner is gone", func() bool { return !alive(engine) })
	t.Logf("engine gone %v after the runner was killed", time.Since(killedAt))
	_ = runner.Wait()

	marker, err := OpenMarker(markPath)
	if err != nil {
		t.Fatal(err)
	}
	killed, err := marker.KillLeftovers(within(t))
	if err != nil || !slices.Equal(killed, []int{grandchild}) {
		t.Errorf("KillLeftovers = %v, %v; want the grandchild %d", killed, err, grandchild)
	}
	if alive(grandchild) {
		t.Error("grandchild alive")
	}
	if again, err := marker.KillLeftovers(within(t)); err != nil || len(again) != 0 {
		t.Errorf("a second time: %v, %v", again, err)
	}
}

// Only processes with the runner's own mark are killed, and only if no other runner has it.
func TestMarkerSparesOtherProcesses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "engines")
	first, err := OpenMarker(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.Marker = first
	p := start(t, testSpec(), cfg)
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path+"-copy", content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{path, path + "-copy", path + "-new"} {
		m, err := OpenMarker(other)
		if err != nil {
			t.Fatal(err)
		}
		if killed, err := m.KillLeftovers(within(t)); err != nil || len(killed) > 0 || m.mark == first.mark {
			t.Errorf("%s: killed %v, %v", other, killed, err)
		}
	}
	if !alive(p.PID()) {
		t.Error("another runner's engine was killed")
	}
	_ = first.file.Close()
	again, err := OpenMarker(path)
	if err != nil || again.mark != first.mark {
		t.Errorf("the same file gives %q and %q, %v", first.mark, again.mark, err)
	}
}

func TestParseStat(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       procStat
		ok         bool
	}{
		{"plain", "12 (eng) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2", procStat{'S', 12}, true},
		{"a name with spaces and brackets", "12 (a) Z (b) ) R 1 7 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 5 1", procStat{'R', 7}, true},
		{"short", "12 (eng) S 1", procStat{}, false},
		{"empty", "", procStat{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := parseStat(tt.line); ok != tt.ok || got != tt.want {
				t.Errorf("parseStat = %+v, %v; want %+v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}
