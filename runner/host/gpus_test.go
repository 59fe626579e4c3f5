package host_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
	"reveille/runner/devices"
	"reveille/runner/host"
	"reveille/runner/plan"
)

const gpuModels = `
models:
  a: {type: llm, recipe: standin, device: gpu, memory: 20}
  b: {type: llm, recipe: standin, device: gpu, memory: 20}
  c: {type: llm, recipe: standin, device: gpu, memory: 20}
  wide: {type: llm, recipe: standin, device: gpu, memory: 40}
  two: {type: llm, recipe: standin, device: gpu, gpus: 2, memory: 10}
  second: {type: llm, recipe: standin, device: "gpu:1", memory: 20}
  third: {type: llm, recipe: standin, device: "gpu:2", memory: 20}
  huge: {type: llm, recipe: standin, device: gpu, gpus: 1, memory: 25}
  other: {type: llm, recipe: oga, device: gpu, memory: 30}
  unmeasured: {type: llm, recipe: standin, device: gpu, gpus: 2}
recipes:
  oga: {inherit: standin, env: {CUDA_VISIBLE_DEVICES: "0"}}
`

// startOnGPUs starts a host with n GPUs of 24 bytes and no limit of models.
func startOnGPUs(t *testing.T, n int, change ...func(*host.Hardware)) *bench {
	has := host.Hardware{Devices: policy.CPU | policy.GPU, Budget: map[policy.Devices]int64{policy.GPU: 24 * int64(n)}, Cards: policy.GPUMemory{}}
	for i := range n {
		has.Cards[i] = 24
		has.Found.Devices = append(has.Found.Devices, devices.Device{Kind: "gpu", Index: i, Total: 27, API: devices.CUDA, Visible: fmt.Sprint(i)})
	}
	for _, c := range change {
		c(&has)
	}
	parsed, _, err := catalog.Parse("models.yaml", []byte(gpuModels))
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, func(c *host.Config) {
		c.Limits, c.Hardware = policy.Uniform(-1), has
		c.Recipes = func() (recipe.Set, error) { return parsed.Recipes, nil }
	})
	b.publish(gpuModels)
	return b
}

// gpusOf returns the GPU settings of a model's engine.
func (b *bench) gpusOf(model string) string {
	b.Helper()
	g := b.engines.of(model).gpus
	return fmt.Sprintf("%d %s", g.Count, g.Env["CUDA_VISIBLE_DEVICES"])
}

// A model takes the fewest GPUs that hold it, its engine gets their names, and victims are models on its GPUs.
func TestLoadTakesTheFewestGPUs(t *testing.T) {
	b := startOnGPUs(t, 2)
	for _, step := range []struct{ model, names, cards, evicted string }{
		{"a", "1 0", "gpu:0=20", ""},
		{"b", "1 1", "gpu:1=20", ""},
		{"c", "1 0", "gpu:0=20", "a"},
		{"second", "1 1", "gpu:1=20", "b"},
		{"wide", "2 ", "gpu:0=20 gpu:1=20", "c,second"}, // all GPUs: no names needed
		{"two", "2 ", "gpu:0=5 gpu:1=5", "wide"},
	} {
		r := b.ready(b.load(step.model))
		if got := b.gpusOf(step.model); got != step.names || r.Evicted != step.evicted {
			t.Errorf("%s: GPUs %q, evicted %q; want %q, %q", step.model, got, r.Evicted, step.names, step.evicted)
		}
		if rec := b.record(step.model); rec.Fields["cards"] != step.cards || rec.Device != "gpu" {
			t.Errorf("%s: record %q on %s, want %q", step.model, rec.Fields["cards"], rec.Device, step.cards)
		}
	}
}

// A refusal names the GPUs, and a host reports the memory of each to gateways.
func TestRefusalNamesGPUs(t *testing.T) {
	b := startOnGPUs(t, 2)
	r := b.failed(b.load("huge"), "model_too_large")
	if !strings.Contains(r.Message, "more than the 24 a host has on gpu:0") || r.Fields["cards"] != "gpu:0" {
		t.Errorf("%q, %v", r.Message, r.Fields)
	}
	if r := b.failed(b.load("third"), "model_load_error"); !strings.Contains(r.Message, "model third needs device gpu:2") {
		t.Errorf("%q", r.Message)
	}
	b.ready(b.ask(state.Want{Model: "a", OwnTicket: true, Fields: map[string]string{"pinned": "1"}}))
	b.ready(b.ask(state.Want{Model: "b", OwnTicket: true, Fields: map[string]string{"pinned": "1"}}))
	if r := b.failed(b.load("second"), "slots_pinned_error"); !strings.Contains(r.Message, "pinned models (b) use 20 of 24 on gpu:1") {
		t.Errorf("%q", r.Message)
	}
	s, err := b.store.Snapshot(t.Context())
	b.must(err)
	f := s.Hosts["h"].Fields
	_, gpus := placement.ParseMemory(f["memory_budget"])
	if f["memory_budget"] != "gpu=48 gpu:0=24 gpu:1=24" || f["gpu_api"] != "cuda" || !maps.Equal(gpus, policy.GPUMemory{0: 24, 1: 24}) {
		t.Errorf("%q by %q", f["memory_budget"], f["gpu_api"])
	}
}

// What an engine takes of its GPUs counts on each of them, if it is more than planned.
func TestMeasuredMemoryCountsOnEachGPU(t *testing.T) {
	const mib = 1 << 20
	for _, estimate := range []int64{0, 100 * mib} {
		b := startOnGPUs(t, 2, func(h *host.Hardware) {
			h.Budget[policy.GPU], h.Cards = 400*mib, policy.GPUMemory{0: 200 * mib, 1: 200 * mib}
		})
		b.engines.plans["unmeasured"] = plan.Plan{Estimate: estimate, Need: estimate}
		b.engines.took["unmeasured"] = 236 * mib // the drivers' memory not included
		b.ready(b.load("unmeasured"))
		if r := b.record("unmeasured"); r.Memory != 300*mib || r.Fields["cards"] != "gpu:0=157286400 gpu:1=157286400" {
			t.Errorf("planned as %d: %d bytes, %q", estimate, r.Memory, r.Fields["cards"])
		}
	}
}

// On a host with one GPU the engine gets no GPU names. Of eight GPUs, four models take one each while another model
// takes two.
func TestEngineGetsNoGPUNamesOnAOneGPUHost(t *testing.T) {
	one := startOnGPUs(t, 1)
	one.ready(one.load("a"))
	if got := one.gpusOf("a"); got != "1 " {
		t.Errorf("GPUs %q", got)
	}
	one.failed(one.load("wide"), "model_too_large")
	one.failed(one.load("two"), "model_load_error")

	eight := startOnGPUs(t, 8)
	for i, m := range []string{"a", "b", "c", "wide", "huge"} {
		if m == "huge" {
			eight.failed(eight.load(m), "model_too_large")
			continue
		}
		eight.ready(eight.load(m))
		if got, want := eight.gpusOf(m), [...]string{"1 0", "1 1", "1 2", "2 3,4"}[i]; got != want {
			t.Errorf("%s: GPUs %q, want %q", m, got, want)
		}
	}
	eight.holds("a", "b", "c", "wide")
}

// The sum of the GPUs counts where the machine, the owner's setting or the recipe does not allow single GPUs to be
// chosen.
func TestGPUsCountTogetherWhereNoneCanBeChosen(t *testing.T) {
	for model, known := range map[string]bool{"huge": false, "other": true} {
		t.Run(model, func(t *testing.T) {
			b := startOnGPUs(t, 2, func(h *host.Hardware) {
				if !known {
					h.Cards = nil
				}
			})
			b.ready(b.load(model))
			if got := b.gpusOf(model); got != "0 " || b.record(model).Fields["cards"] != "" {
				t.Errorf("GPUs %q, record %q", got, b.record(model).Fields["cards"])
			}
		})
	}
}
