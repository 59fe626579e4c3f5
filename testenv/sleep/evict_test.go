package sleep

import (
	"strconv"
	"testing"
	"time"

	"reveille/infra/policy"
)

const prices = `
models:
  slow: {type: llm, recipe: standin, device: cpu, options: {args: "--load-time 3s"}}
  quick: {type: llm, recipe: standin, device: cpu}
  new: {type: llm, recipe: standin, device: cpu}
hosts:
  local: {driver: local, devices: [cpu], price: 2}
`

// Of two idle models the one goes that is worth least by what Redis holds of them, on an idle machine the one that was used
// last, as it is far quicker to bring back.
func TestEvictByCost(t *testing.T) {
	t.Parallel()
	s, rdb, _ := system(t, prices, "--idle=1h", "--host-idle=1h", "--max-loaded-models=2", "--evict=cost")
	c := client(t)
	for _, model := range []string{"slow", "quick"} {
		use(t, c, s.URL, model, false)
	}
	number := func(model, name string) int64 {
		n, err := strconv.ParseInt(field(t, rdb, "rv:{main}:model:local:"+model, name), 10, 64)
		if err != nil {
			t.Fatalf("%s of %s: %v", name, model, err)
		}
		return n
	}
	type record struct{ load, used int64 }
	records := map[string]record{}
	for _, model := range []string{"slow", "quick"} {
		records[model] = record{number(model, "load_ms"), number(model, "used_ms")}
	}
	least := func(now time.Time) string {
		worth := func(model string) float64 {
			r := records[model]
			return policy.Cost.Value(time.Duration(r.load)*time.Millisecond, 2, now.Sub(time.UnixMilli(r.used)))
		}
		if worth("slow") < worth("quick") {
			return "slow"
		}
		return "quick"
	}
	now := func() time.Time {
		at, err := rdb.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	before := now()
	a := use(t, c, s.URL, "new", false)
	want, after := least(before), least(now())
	if want != after || a.repeated {
		t.Logf("%v: which model is worth least changed meanwhile, or it went at an earlier try", records)
		return
	}
	if got := a.Header.Get("X-Evicted"); got != want {
		t.Errorf("%q went, want %q: %v", got, want, records)
	}
}
