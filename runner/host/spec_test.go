package host

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
	"reveille/runner/devices"
	"reveille/runner/plan"
)

// planner records which plans were requested.
type planner struct {
	Engines
	options map[string]recipe.Options // by model, the latest
	shares  map[string]plan.Share
	need    map[string]int64
}

func (p *planner) Plan(m *catalog.Model, _ *recipe.Recipe, o recipe.Options, s plan.Share) (plan.Plan, error) {
	p.options[m.ID], p.shares[m.ID] = o, s
	return plan.Plan{Need: p.need[m.ID]}, nil
}

// planning returns a host with a catalog that only makes plans.
func planning(t *testing.T, cfg Config, text string) (*Host, *planner) {
	t.Helper()
	c, _, err := catalog.Parse("models.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := &planner{options: map[string]recipe.Options{}, shares: map[string]plan.Share{}, need: map[string]int64{}}
	cfg.Engines = p
	if cfg.Store, err = state.Open(state.Options{URL: "redis://127.0.0.1:1"}); err != nil { // nobody is there: no need was measured
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cfg.Store.Close() })
	h := New(cfg)
	h.catalog = c
	return h, p
}

// A plan is for the fewest GPUs that hold it, and its share is the share of those.
func TestPlanUsesTheFewestGPUs(t *testing.T) {
	const models = `
models:
  l: {type: llm, recipe: llamacpp, checkpoint: "hf://o/r/a.gguf"}
  own: {type: llm, recipe: llamacpp, checkpoint: "hf://o/r/a.gguf", options: {llamacpp_args: "--split-mode none"}}
  cpu: {type: llm, recipe: llamacpp, device: cpu, checkpoint: "hf://o/r/a.gguf"}
  v: {type: llm, recipe: vllm, checkpoint: o/r}
  v3: {type: llm, recipe: vllm, checkpoint: o/r, gpus: 3}
  v9: {type: llm, recipe: vllm, checkpoint: o/r, gpus: 9}
  pinned: {type: llm, recipe: llamacpp, device: "gpu:1", checkpoint: "hf://o/r/a.gguf"}
`
	has := Hardware{Devices: policy.CPU | policy.GPU, Budget: map[policy.Devices]int64{policy.GPU: 8000}, Totals: map[policy.Devices]int64{policy.GPU: 8800}, Cards: policy.GPUMemory{}}
	for i := range 8 {
		has.Cards[i] = 1000
		has.Found.Devices = append(has.Found.Devices, devices.Device{Kind: "gpu", Index: i, Total: 1100, API: devices.CUDA, Visible: strconv.Itoa(i)})
	}
	for _, test := range []struct {
		model string
		need  int64
		gpus  policy.GPUConstraint
		share plan.Share
	}{
		{"l", 800, policy.GPUConstraint{Min: 1, Max: policy.MaxGPUs}, plan.Share{Budget: 1000, Total: 1100, Paged: 1}},
		{"l", 1001, policy.GPUConstraint{Min: 2, Max: policy.MaxGPUs}, plan.Share{Budget: 2000, Total: 2200, Paged: 1}},
		{"l", 7500, policy.GPUConstraint{Min: 8, Max: policy.MaxGPUs}, plan.Share{Budget: 8000, Total: 8800, Paged: 4}},
		{"l", 9000, policy.GPUConstraint{Min: 8, Max: policy.MaxGPUs}, plan.Share{Budget: 8000, Total: 8800, Paged: 4}},
		{"l", 0, policy.GPUConstraint{}, plan.Share{Budget: 8000, Total: 8800, Paged: 4}},
		{"own", 800, policy.GPUConstraint{}, plan.Share{Budget: 8000, Total: 8800, Paged: 4}},
		{"cpu", 800, policy.GPUConstraint{}, plan.Share{Paged: 4}},
		{"v", 2500, policy.GPUConstraint{Min: 4, Max: 4, Even: true}, plan.Share{Budget: 4000, Total: 4400, Paged: 2}},
		{"v3", 10, policy.GPUConstraint{Min: 3, Max: 3, Even: true}, plan.Share{Budget: 3000, Total: 3300, Paged: 2}},
		{"v9", 10, policy.GPUConstraint{Min: 9, Max: 9, Even: true}, plan.Share{Budget: 8000, Total: 8800, Paged: 4}}, // which is refused
		{"pinned", 0, policy.GPUConstraint{Min: 1, Max: policy.MaxGPUs, Only: 2}, plan.Share{Budget: 1000, Total: 1100, Paged: 1}},
	} {
		h, p := planning(t, Config{Limits: policy.Uniform(4), Hardware: has}, models)
		p.need[test.model] = test.need
		e := entryOf(t, h, test.model)
		if e.gpus != test.gpus || p.shares[test.model] != test.share || e.plan.Warnings != nil {
			t.Errorf("%s of %d: %+v, %+v, want %+v, %+v; %q", test.model, test.need, e.gpus, p.shares[test.model], test.gpus, test.share, e.plan.Warnings)
		}
	}
	has.Cards = nil
	h, _ := planning(t, Config{Limits: policy.Uniform(4), Hardware: has}, models)
	if e := entryOf(t, h, "pinned"); len(e.plan.Warnings) != 1 || !strings.Contains(e.plan.Warnings[0], "is ignored") || e.gpus != (policy.GPUConstraint{}) {
		t.Errorf("a choice that the engine cannot use: %q, %+v", e.plan.Warnings, e.gpus)
	}
}

func entryOf(t *testing.T, h *Host, model string) loadSpec {
	t.Helper()
	e, err := h.specFor(state.TicketRecord{Model: model})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const neighbors = `
models:
  a: {type: llm, recipe: llamacpp, device: cpu, checkpoint: "hf://o/r/a.gguf"}
  e: {type: embedding, recipe: llamacpp, device: cpu, checkpoint: "hf://o/r/e.gguf", options: {n_ubatch: 1024}}
  f: {type: reranking, recipe: llamacpp, device: cpu, checkpoint: "hf://o/r/f.gguf", memory: 30}
  g: {type: embedding, recipe: llamacpp, device: gpu, checkpoint: "hf://o/r/g.gguf"}
`

// contextPlanner plans an automatic context of a byte a token for what the share leaves besides 40 bytes of weights.
type contextPlanner struct{ Engines }

func (contextPlanner) Plan(_ *catalog.Model, _ *recipe.Recipe, o recipe.Options, s plan.Share) (plan.Plan, error) {
	p := plan.Plan{Context: int(s.Budget - 40 - s.AboveEstimate)}
	if n, ok := o["ctx_size"].(int64); ok && n > 0 {
		p.Context = int(n)
	}
	p.Estimate = 40 + int64(p.Context) + s.AboveEstimate
	p.Need, p.Signature = p.Estimate, strconv.Itoa(p.Context)
	return p, nil
}

// A need above the budget makes an automatic context smaller. A configured one is refused only for a while after its
// engine ran out of memory.
func TestNeedAboveTheBudgetShrinksTheContext(t *testing.T) {
	h, _ := planning(t, Config{Limits: policy.Uniform(1), Hardware: Hardware{Budget: map[policy.Devices]int64{policy.CPU: 100}}}, `
models:
  auto: {type: llm, recipe: llamacpp, device: cpu, checkpoint: "hf://o/r/a.gguf"}
  set: {type: llm, recipe: llamacpp, device: cpu, checkpoint: "hf://o/r/a.gguf", options: {ctx_size: 50}}
`)
	h.cfg.Engines = contextPlanner{}
	know := func(tokens string, n measuredNeed) { h.setNeed(needKey(tokens, policy.CPU, 0), n) }
	check := func(what, model string, context int, need int64, ruled string) {
		t.Helper()
		if p := entryOf(t, h, model).plan; p.Context != context || p.Need != need || p.NeedSource != ruled {
			t.Errorf("%s: context %d, need %d by %q; want %d, %d by %q", what, p.Context, p.Need, p.NeedSource, context, need, ruled)
		}
	}
	check("nothing known", "auto", 60, 100, "")
	know("60", measuredNeed{120, time.Now()})
	check("it ran out of memory", "auto", 40, 100, "")
	know("40", measuredNeed{bytes: 90})
	check("the smaller one was measured", "auto", 40, 90, plan.FromMeasurement)
	know("50", measuredNeed{bytes: 95})
	check("measured", "set", 50, 95, plan.FromMeasurement)
	know("50", measuredNeed{bytes: 130})
	check("measured above the budget", "set", 50, 100, plan.FromMeasurement)
	know("50", measuredNeed{130, time.Now()})
	check("just ran out of memory", "set", 50, 130, plan.FromOOM)
	know("50", measuredNeed{130, time.Now().Add(-retryTooLarge)})
	check("ran out of memory long ago", "set", 50, 100, plan.FromMeasurement)
}

// A share uses the limits in force, those set at run time included.
func TestShareFollowsRuntimeLimits(t *testing.T) {
	h, p := planning(t, Config{Limits: policy.Uniform(1), Hardware: Hardware{Budget: map[policy.Devices]int64{policy.CPU: 1000}}}, neighbors)
	h.settings.limits = policy.Uniform(4)
	if entryOf(t, h, "a"); p.shares["a"].Paged != 4 {
		t.Errorf("%+v", p.shares["a"])
	}
}

// The models that share a device with a language model are planned with the options that their own loads would use.
func TestOtherModelsArePlannedWithTheirOptions(t *testing.T) {
	h, p := planning(t, Config{Limits: policy.Uniform(1), Options: recipe.Options{"n_batch": int64(4096)}}, neighbors)
	h.settings.runtime = map[string]string{"ctx_size": "9000"}
	h.settings.saved = map[string]string{"e": `{"n_parallel":3}`}
	entryOf(t, h, "a")
	beside := p.options["e"]
	if own := entryOf(t, h, "e").options; !reflect.DeepEqual(beside, own) || own["n_batch"] != int64(4096) || own["ctx_size"] != int64(9000) {
		text, _ := json.Marshal([]recipe.Options{beside, own})
		t.Errorf("with another and alone: %s", text)
	}
}

// A share counts the known needs of neighbors on its devices, and the plan names the neighbors whose need is unknown.
func TestPlanNamesModelsOfUnknownSize(t *testing.T) {
	h, p := planning(t, Config{
		Limits: policy.Uniform(1), Hardware: Hardware{Budget: map[policy.Devices]int64{policy.CPU: 1000}, Totals: map[policy.Devices]int64{policy.CPU: 1250}},
	}, neighbors)
	for _, size := range []int64{0, 50} {
		p.need["e"] = size
		e := entryOf(t, h, "a")
		if want := (plan.Share{Budget: 1000, Total: 1250, Paged: 1, Plain: 30 + size}); p.shares["a"] != want {
			t.Errorf("%+v, want %+v", p.shares["a"], want)
		}
		said := strings.Join(e.plan.Warnings, "\n")
		if named := strings.Contains(said, "no room for e,") && strings.Contains(said, "`memory:`"); named != (size == 0) || len(e.plan.Warnings) > 1 {
			t.Errorf("e of %d bytes: %q", size, said)
		}
	}
	h.hardware.Budget = nil
	p.need["e"] = 0
	if e := entryOf(t, h, "a"); e.plan.Warnings != nil {
		t.Errorf("without a budget: %q", e.plan.Warnings)
	}
}
