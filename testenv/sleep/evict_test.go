package sleep

import (
	"strconv"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/testenv/kit"
)

const prices = `
models:
  slow: {type: llm, recipe: standin, device: cpu, options: {args: "--load-time 3s"}}
  quick: {type: llm, recipe: standin, device: cpu}
  new: {type: llm, recipe: standin, device: cpu}
hosts:
  local: {driver: local, devices: [cpu], price: 2}
`

// Of two idle models the one goes that is worth less by what Redis holds of them: the one that was used last, as it is far
// quicker to bring back.
func TestEvictByCost(t *testing.T) {
	t.Parallel()
	s, rdb, _ := system(t, prices, "--idle=1h", "--host-idle=1h", "--max-loaded-models=2", "--evict=cost")
	c := client(t)
	for _, model := range []string{"slow", "quick"} {
		use(t, c, s.URL, model, false)
	}
	number := func(model, name string) int64 {
		n, err := strconv.ParseInt(rdb.HGet(t.Context(), "rv:{main}:model:local:"+model, name).Val(), 10, 64)
		if err != nil {
			t.Fatalf("%s of %s: %v", name, model, err)
		}
		return n
	}
	type record struct{ load, used int64 }
	records := map[string]record{}
	for _, model := range []string{"slow", "quick"} {
		records[model] = record{number(model, "load_ms"), int64(rdb.ZScore(t.Context(), "rv:{main}:lru:local:llm", model).Val())}
	}
	worth := func(model string, now time.Time) float64 {
		r := records[model]
		return policy.Cost.Value(time.Duration(r.load)*time.Millisecond, 2, now.Sub(time.UnixMilli(r.used)))
	}
	// The longer both are idle, the less it counts that slow was used first. Once quick is worth less it stays so.
	kit.Eventually(t, "quick is worth less than slow", func() bool {
		now, err := rdb.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return worth("quick", now) < worth("slow", now)
	})
	if got := use(t, c, s.URL, "new", false).Header.Get("X-Evicted"); got != "quick" {
		t.Errorf("%q went, want quick: %v", got, records)
	}
}
