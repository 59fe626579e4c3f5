package day

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"reveille/infra/policy"
)

func seeds(t *testing.T) int {
	text := os.Getenv("REVEILLE_DAY_SEEDS")
	if text == "" {
		return 2
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("REVEILLE_DAY_SEEDS=%q: want a number of seeds", text)
	}
	return n
}

// TestDay plays whole days without Redis.
func TestDay(t *testing.T) {
	compare(t, 24*time.Hour, func(*testing.T, *world) {})
}

// compare plays a world for each seed and each way to choose victims, and prints the table of what it cost. prepare sees
// each world before it is played.
func compare(t *testing.T, length time.Duration, prepare func(*testing.T, *world)) {
	ways, n := [...]policy.Eviction{policy.LRU, policy.Cost}, seeds(t)
	played := make([][]*tally, len(ways))
	t.Run("play", func(t *testing.T) { // returns when all are played
		for i, evict := range ways {
			played[i] = make([]*tally, n)
			for seed := range n {
				t.Run(fmt.Sprintf("%s-%d", evict, seed), func(t *testing.T) {
					t.Parallel()
					w := newWorld(uint64(seed), evict, length)
					prepare(t, w)
					got := w.run()
					for _, b := range w.broken {
						t.Error(b)
					}
					if got.cold != len(got.waits) { // 13: every request has its outcome
						t.Errorf("%d requests were held and %d served", got.cold, len(got.waits))
					}
					played[i][seed] = got
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	t.Logf("the mean of %d times %v", n, length)
	t.Logf("%-5s %9s %11s %8s %11s %10s %6s %10s %9s %9s", "evict", "requests", "host hours", "price", "cold starts", "evictions", "wakes", "mean wait", "p50", "p95")
	for i, evict := range ways {
		var sum tally
		for _, one := range played[i] {
			sum.add(one)
		}
		t.Log(sum.row(evict, n))
	}
}

func (s *tally) add(o *tally) {
	s.requests += o.requests
	s.cold += o.cold
	s.evictions += o.evictions
	s.loads += o.loads
	s.wakes += o.wakes
	s.hours += o.hours
	s.price += o.price
	s.waits = append(s.waits, o.waits...)
}

// row is the mean day.
func (s *tally) row(evict policy.Eviction, days int) string {
	slices.Sort(s.waits)
	var total time.Duration
	for _, d := range s.waits {
		total += d
	}
	at := func(share float64) time.Duration {
		if len(s.waits) == 0 {
			return 0
		}
		return s.waits[int(share*float64(len(s.waits)-1))].Round(100 * time.Millisecond)
	}
	mean := total / time.Duration(max(1, len(s.waits)))
	return fmt.Sprintf("%-5s %9d %11.1f %8.1f %11d %10d %6d %10v %9v %9v", evict, s.requests/days, s.hours/float64(days), s.price/float64(days),
		s.loads/days, s.evictions/days, s.wakes/days, mean.Round(100*time.Millisecond), at(0.5), at(0.95))
}
