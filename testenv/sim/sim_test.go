package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reveille/testenv/check"
)

var (
	oneSeed  = flag.Uint64("sim.seed", 0, "run this seed alone and print its history")
	seeds    = flag.Int("sim.seeds", 0, "how many seeds to run; 0: as many of the first 1,000 as ten minutes allow, with -short as ten seconds allow")
	firstRun = flag.Uint64("sim.first", 1, "the first seed")
	shrink   = flag.Bool("sim.shrink", false, "shrink what fails")
	out      = flag.String("sim.out", "", "folder for the histories of failing seeds")
	stopAt   = flag.Int("sim.stop", 5, "how many failing seeds end the test")
	steps    = flag.Int("sim.steps", 200, "steps of a scenario")
)

// stands is how long a seed may take; it needs half a second. The virtual clock cannot tell a bubble that hangs from one
// that works.
const stands = 3 * time.Minute

func TestSeeds(t *testing.T) {
	if *oneSeed != 0 {
		s := Generate(*oneSeed, *steps)
		t.Logf("\n%s", s)
		r := Run(t, s)
		for _, e := range r.History {
			if e.Kind != "sample" {
				t.Log(e)
			}
		}
		for _, v := range r.Violations {
			t.Error(v)
		}
		t.Log(r.Requests, r.Outcomes, r.Spawns, r.Virtual)
		if *shrink && len(r.Violations) > 0 {
			n := r.Violations[0].Invariant
			s = Shrink(s, 400, func(s Scenario) bool { return Run(t, s).Breaks(n) })
			t.Logf("shrunk:\n%s", s)
			r = Run(t, s)
			for _, e := range r.History {
				if e.Kind != "sample" {
					t.Log(e)
				}
			}
			t.Log(r.Violations)
		}
		return
	}
	var next, failures atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	n, limit := *seeds, 24*time.Hour
	if n == 0 {
		n, limit = 1000, 10*time.Minute
		if testing.Short() {
			limit = 10 * time.Second
		}
	}
	began, virtual, requests, spawns, ran := time.Now(), time.Duration(0), 0, 0, 0
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && int(failures.Load()) < *stopAt && time.Since(began) < limit; i = next.Add(1) - 1 {
				seed := *firstRun + uint64(i)
				stuck := time.AfterFunc(stands, func() {
					panic(fmt.Sprintf("seed %d stands still: a goroutine waits for a mutex whose holder waits for the clock", seed))
				})
				r := Run(t, Generate(seed, *steps))
				stuck.Stop()
				mu.Lock()
				ran++
				virtual, requests, spawns = virtual+r.Virtual, requests+r.Requests, spawns+r.Spawns
				if ran%250 == 0 {
					t.Logf("%d of %d seeds in %v", ran, n, time.Since(began).Round(time.Second))
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
	t.Logf("%d seeds, %d requests, %d spawns, %v virtual in %v", ran, requests, spawns, virtual, time.Since(began))
}

// keep writes a failing history where -sim.out says.
func keep(t *testing.T, seed uint64, r Report) {
	if *out == "" {
		return
	}
	var b strings.Builder
	for _, e := range r.History {
		if e.Kind != check.Sample {
			fmt.Fprintln(&b, e)
		}
	}
	for _, v := range r.Violations {
		fmt.Fprintln(&b, v)
	}
	if err := os.WriteFile(filepath.Join(*out, fmt.Sprintf("seed-%d.txt", seed)), []byte(b.String()), 0o600); err != nil {
		t.Error(err)
	}
}
