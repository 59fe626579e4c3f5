package engine

import (
	"bufio"
	"encoding/json"
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
func TestRunnerKilled(t *testing.T) {
	dir := t.TempDir()
	ledgerPath, pidFile := filepath.Join(dir, "engines.json"), filepath.Join(dir, "pid")
	runner := exec.Command(os.Args[0], ledgerPath, pidFile)
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

	ledger, err := OpenPIDFile(ledgerPath)
	if err != nil {
		t.Fatal(err)
	}
	killed, err := ledger.KillLeftovers(within(t))
	if err != nil || !slices.Equal(killed, []int{grandchild}) {
		t.Errorf("KillLeftovers = %v, %v; want the grandchild %d", killed, err, grandchild)
	}
	if alive(grandchild) {
		t.Error("grandchild alive")
	}
	if again, err := ledger.KillLeftovers(within(t)); err != nil || len(again) != 0 {
		t.Errorf("a second time: %v, %v", again, err)
	}
}

// Processes that only look like noted ones are left alone.
func TestLedgerSparesStrangers(t *testing.T) {
	cfg := testConfig(t)
	p := start(t, testSpec(), cfg)
	if err := p.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	here, own := folderID(dir), []pidRecord{{p.PID(), p.ticks, newMark()}}
	for name, file := range map[string]pidFileContent{
		"another start time and mark": {Boot: bootID(), Folder: here, Engines: []pidRecord{{p.PID(), p.ticks + 1, newMark()}}},
		"another boot":                {Boot: "x", Folder: here, Engines: own},
		"a copied folder":             {Boot: bootID(), Folder: folderID(t.TempDir()), Engines: own},
		"a runner that is alive":      {Boot: bootID(), Folder: here, Owner: pidRecord{PID: os.Getpid(), Start: startTicks(os.Getpid())}, Engines: own},
	} {
		path := filepath.Join(dir, "engines.json")
		data, _ := json.Marshal(file)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := OpenPIDFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if killed, err := l.KillLeftovers(within(t)); err != nil || len(killed) > 0 {
			t.Errorf("%s: killed %v, %v", name, killed, err)
		}
	}
	if !alive(p.PID()) {
		t.Error("a stranger was killed")
	}
}

func TestLedgerFollowsProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engines.json")
	cfg := testConfig(t)
	l, err := OpenPIDFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg.PIDFile = l
	noted := func() []pidRecord {
		var f pidFileContent
		data, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(data, &f) != nil {
			t.Fatalf("ledger: %s, %v", data, err)
		}
		return f.Engines
	}
	p := start(t, testSpec(), cfg)
	if got := noted(); len(got) != 1 || got[0].PID != p.PID() || got[0].Start != p.ticks {
		t.Errorf("noted %+v", got)
	}
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := noted(); len(got) != 0 {
		t.Errorf("noted after the stop: %+v", got)
	}
	if err := os.WriteFile(path, []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenPIDFile(path); err != nil {
		t.Errorf("a torn file: %v", err)
	}
}

func TestParseStat(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       procStat
		ok         bool
	}{
		{"plain", "12 (eng) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2", procStat{'S', 12, 98765}, true},
		{"a name with spaces and brackets", "12 (a) Z (b) ) R 1 7 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 5 1", procStat{'R', 7, 5}, true},
		{"short", "12 (eng) S 1 12", procStat{}, false},
		{"empty", "", procStat{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := parseStat(tt.line); ok != tt.ok || got != tt.want {
				t.Errorf("parseStat = %+v, %v; want %+v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("12 (eng) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2")
	f.Add(") S")
	f.Fuzz(func(t *testing.T, line string) {
		parseStat(line) // must not panic
	})
}
