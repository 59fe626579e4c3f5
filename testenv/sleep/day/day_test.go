package day

import (
	"fmt"
	"os"
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
	t.Logf("mean day ± standard deviation of %d times %v", n, length)
	t.Log(head())
	for i, evict := range ways {
		t.Log(row(evict, played[i]))
	}
}

// hours is how much of each day TestScripts plays.
func hours(t *testing.T) time.Duration {
	text := os.Getenv("REVEILLE_DAY_HOURS")
	if text == "" {
		return 12 * time.Hour
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 24 {
		t.Fatalf("REVEILLE_DAY_HOURS=%q: want 1 to 24", text)
	}
	return time.Duration(n) * time.Hour
}
