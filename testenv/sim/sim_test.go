package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reveille/testenv/kit"
)

var (
	oneSeed  = flag.Uint64("sim.seed", 0, "run this seed alone and print its history")
	seeds    = flag.Int("sim.seeds", 0, "how many seeds to run; 0: 120, with -short 20, under the race detector 60")
	firstRun = flag.Uint64("sim.first", 1, "the first seed")
	shrink   = flag.Bool("sim.shrink", false, "shrink what fails")
	out      = flag.String("sim.out", "", "folder for the histories of failing seeds")
	stopAt   = flag.Int("sim.stop", 5, "how many failing seeds end the test")
	steps    = flag.Int("sim.steps", 200, "steps of a scenario")
)

// stands is how long a seed may take; it needs half a second. The virtual clock cannot tell a bubble that hangs from
// one that works.
const stands = 3 * time.Minute

// TestSeeds runs a fixed list of seeds and fails for broken promises, and for promises that were hardly judged.
func TestSeeds(t *testing.T) {
	if *oneSeed != 0 {
		runOne(t, Generate(*oneSeed, *steps))
		return
	}
	n := *seeds
	if n == 0 {
		switch n = 120; {
		case testing.Short():
			n = 20
		case kit.Race: // it makes each ten times as slow
			n = 60
		}
	}
	if sum := runSeeds(t, n, Generate); !t.Failed() {
		sum.judge(t)
	}
}

// few is how many seeds a test of further scenarios runs.
func few() int {
	switch {
	case *seeds != 0:
		return *seeds
	case testing.Short(), kit.Race:
		return 10
	}
	return 20
}

// TestSizes runs seeds of twenty models of 4 to 60 GiB on hosts with one or two GPUs of 24, 48 and 80 GiB. No GPU is
// ever given more than it has, no load that a host can hold is refused for memory, and none starts where it cannot fit.
func TestSizes(t *testing.T) {
	if *oneSeed != 0 {
		runOne(t, GenerateSizes(*oneSeed, *steps))
		return
	}
	n := few()
	if sum := runSeeds(t, n, GenerateSizes); sum.judged[27].Steps < 10*n && !t.Failed() {
		t.Errorf("the memory of hosts was judged in %d steps", sum.judged[27].Steps)
	}
}

// TestCopies runs seeds of models that may have several copies.
func TestCopies(t *testing.T) {
	if *oneSeed != 0 {
		runOne(t, GenerateCopies(*oneSeed, *steps))
		return
	}
	n := few()
	if sum := runSeeds(t, n, GenerateCopies); sum.judged[31].Steps < n && !t.Failed() {
		t.Errorf("the order of requests at engines was judged in %d steps", sum.judged[31].Steps)
	}
}

// TestGroups runs seeds of groups of machines.
func TestGroups(t *testing.T) {
	if *oneSeed != 0 {
		runOne(t, GenerateGroups(*oneSeed, *steps))
		return
	}
	runSeeds(t, few(), GenerateGroups)
}

// runSeeds runs n scenarios and fails for broken promises.
func runSeeds(t *testing.T, n int, generate func(seed uint64, steps int) Scenario) *table {
	t.Helper()
	var next, failures atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	sum, began := newTable(), time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && int(failures.Load()) < *stopAt; i = next.Add(1) - 1 {
				seed := *firstRun + uint64(i)
				stuck := time.AfterFunc(stands, func() {
					panic(fmt.Sprintf("seed %d stands still: a goroutine waits for a mutex whose holder waits for the clock", seed))
				})
				r := Run(t, generate(seed, *steps))
				stuck.Stop()
				mu.Lock()
				sum.add(r)
				if sum.seeds%250 == 0 {
					t.Logf("%d of %d seeds in %v", sum.seeds, n, time.Since(began).Round(time.Second))
				}
				mu.Unlock()
				if len(r.Violations) > 0 {
					t.Errorf("seed %d: %v", seed, r.Violations[0])
					keep(t, seed, r)
					failures.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%v in %v", sum, time.Since(began).Round(time.Second))
	return sum
}

// runOne runs a scenario alone and prints its history.
func runOne(t *testing.T, s Scenario) {
	t.Logf("\n%s", s)
	r := Run(t, s)
	t.Logf("\n%s", historyOf(r))
	for _, v := range r.Violations {
		t.Error(v)
	}
	t.Log(r.Requests, r.Outcomes, r.Spawns, r.Virtual)
	if *shrink && len(r.Violations) > 0 {
		n := r.Violations[0].Invariant
		s = Shrink(s, 400, func(s Scenario) bool { return Run(t, s).Breaks(n) })
		r = Run(t, s)
		t.Logf("shrunk:\n%s\n%s%v", s, historyOf(r), r.Violations)
	}
}

// keep writes a failing history where -sim.out says.
func keep(t *testing.T, seed uint64, r Report) {
	if *out == "" {
		return
	}
	text := fmt.Sprintf("%s%v\n", historyOf(r), r.Violations)
	if err := os.WriteFile(filepath.Join(*out, fmt.Sprintf("seed-%d.txt", seed)), []byte(text), 0o600); err != nil {
		t.Error(err)
	}
}
