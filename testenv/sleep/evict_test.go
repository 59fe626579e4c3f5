package sleep

import "testing"

const prices = `
models:
  slow: {type: llm, recipe: standin, device: cpu, options: {args: "--load-time 3s"}}
  quick: {type: llm, recipe: standin, device: cpu}
  new: {type: llm, recipe: standin, device: cpu}
hosts:
  local: {driver: local, devices: [cpu], price: 2}
`

// Of two idle models the one goes that was used last, as it is far quicker to bring back.
func TestEvictByCost(t *testing.T) {
	t.Parallel()
	s, rdb, _ := system(t, prices, "--idle=1h", "--host-idle=1h", "--max-loaded-models=2", "--evict=cost")
	c := client(t)
	for _, model := range []string{"slow", "quick"} {
		use(t, c, s.URL, model, false)
	}
	if a := use(t, c, s.URL, "new", false); a.Header.Get("X-Evicted") != "quick" && !a.repeated {
		took := func(model string) string { return field(t, rdb, "rv:{main}:model:local:"+model, "load_ms") }
		t.Errorf("%q went; slow took %s ms to load, new %s ms", a.Header.Get("X-Evicted"), took("slow"), took("new"))
	}
}
