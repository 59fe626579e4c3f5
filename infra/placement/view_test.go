package placement_test

import (
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// A host whose runner found a need that it cannot hold is not asked again, until the model's options change.
func TestRefusedHostsAreNotTriedAgain(t *testing.T) {
	c, _, err := catalog.Parse("models.yaml", []byte("models:\n  m: {type: llm, recipe: standin, device: cpu}\n"))
	if err != nil {
		t.Fatal(err)
	}
	m, _ := c.Model("m")
	rc := c.Recipes[m.Recipe]
	load, err := placement.Resolve(m, &rc, placement.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	host := func(name, budget string) *state.HostRecord {
		return &state.HostRecord{Name: name, State: "ready", Devices: "cpu", Limits: "1", Fields: map[string]string{"memory_budget": budget}}
	}
	s := &state.Snapshot{NowMS: 1, Hosts: map[string]*state.HostRecord{"a": host("a", "cpu=10"), "c": host("c", "cpu=40")}}
	s.Hosts["a"].Fields[placement.NeedField+"m"] = placement.Need{Bytes: 30, Device: policy.CPU, Digest: load.Digest()}.String()
	v := placement.View{Catalog: c}
	placed := func() string { return policy.Place(v.Pool(s), v.Model(s, "m", ""), nil).Host }
	if got := placed(); got != "c" {
		t.Errorf("placed on %q, want c", got)
	}
	s.Saved = map[string]string{"m": `{"ctx_size":512}`}
	if got := placed(); got != "a" {
		t.Errorf("with other options placed on %q, want a", got)
	}
	s.Saved, s.Hosts["a"].Fields["memory_budget"] = nil, "cpu=35" // a's own figure, no longer a refusal
	if got := placed(); got != "a" {
		t.Errorf("with a larger budget placed on %q, want a", got)
	}
}

// A retired copy with open requests holds its slot as a busy model does: an idle model is evicted instead.
func TestRetiredCopiesAreBusy(t *testing.T) {
	c, _, err := catalog.Parse("models.yaml", []byte("models:\n  m: {type: llm, recipe: standin, device: cpu}\n"))
	if err != nil {
		t.Fatal(err)
	}
	host := func(name string, models ...*state.ModelRecord) *state.HostRecord {
		h := &state.HostRecord{Name: name, State: "ready", Devices: "cpu", Limits: "1", Models: map[string]*state.ModelRecord{}}
		for _, m := range models {
			m.Type, m.Device, h.Models[m.ID] = "llm", "cpu", m
		}
		return h
	}
	former := &state.ModelRecord{ID: "m~7", Retired: "m", State: "draining", InFlight: 1, UsedMS: 1}
	s := &state.Snapshot{NowMS: 9, Hosts: map[string]*state.HostRecord{"a": host("a", former), "b": host("b", &state.ModelRecord{ID: "x", State: "loaded", UsedMS: 5})}}
	v := placement.View{Catalog: c}
	place := func() policy.Placement { return policy.Place(v.Pool(s), v.Model(s, "m", ""), nil) }
	if got := place(); got.Host != "b" || got.Reason.Code != policy.IdleVictim {
		t.Errorf("%+v", got)
	}
	delete(s.Hosts, "b")
	if got := place(); got.Host != "a" || got.Reason.Code != policy.BusyVictim {
		t.Errorf("alone: %+v", got)
	}
	former.InFlight = 0
	if got := place(); got.Host != "a" || got.Reason.Code != policy.Stopping {
		t.Errorf("done: %+v", got)
	}
}

// The models file gives the memory of a host that has not registered yet; afterwards its runner does.
func TestMemoryOfTheModelsFileCounts(t *testing.T) {
	c, _, err := catalog.Parse("models.yaml", []byte("hosts:\n  a: {driver: exec, devices: [cpu, gpu], memory: {gpu: 80GiB}, commands: {wake: [on], sleep: [off]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	v, s := placement.View{Catalog: c}, &state.Snapshot{NowMS: 1}
	if got := v.Pool(s).Hosts[0].Budget; len(got) != 1 || got[policy.GPU] != 80<<30 {
		t.Errorf("%v", got)
	}
	s.Hosts = map[string]*state.HostRecord{"a": {Name: "a", State: "ready", Fields: map[string]string{"memory_budget": "cpu=5"}}}
	if got := v.Pool(s).Hosts[0].Budget; len(got) != 1 || got[policy.CPU] != 5 {
		t.Errorf("%v", got)
	}
}

// A model is placed where the single GPUs of one host can hold it with their models.
func TestModelsArePlacedOnSingleGPUs(t *testing.T) {
	c, _, err := catalog.Parse("models.yaml", []byte(`
models:
  m: {type: llm, recipe: llamacpp, checkpoint: m.gguf, memory: 30}
  one: {type: llm, recipe: llamacpp, checkpoint: m.gguf, memory: 30, gpus: 1}
  second: {type: llm, recipe: llamacpp, checkpoint: m.gguf, memory: 5, device: "gpu:1"}
  own: {type: llm, recipe: llamacpp, checkpoint: m.gguf, memory: 30, options: {llamacpp_args: "--main-gpu 1"}}
  v: {type: llm, recipe: vllm, checkpoint: o/r, memory: 30}
  v3: {type: llm, recipe: vllm, checkpoint: o/r, memory: 30, gpus: 3}
  tei: {type: embedding, recipe: tei, checkpoint: o/r, memory: 30}
  embed: {type: embedding, recipe: llamacpp, checkpoint: e.gguf, memory: 30, gpus: 1}
`))
	if err != nil {
		t.Fatal(err)
	}
	host := func(name, api, budget string, models ...*state.ModelRecord) *state.HostRecord {
		h := &state.HostRecord{Name: name, State: "ready", Devices: "cpu gpu", Limits: "-1", Models: map[string]*state.ModelRecord{}, Fields: map[string]string{"memory_budget": budget, "gpu_api": api}}
		for _, m := range models {
			h.Models[m.ID] = m
		}
		return h
	}
	loaded := func(id, cards string, memory int64) *state.ModelRecord {
		return &state.ModelRecord{ID: id, Type: "llm", Device: "gpu", State: "loaded", UsedMS: 1, Memory: memory, Fields: map[string]string{"cards": cards}}
	}
	two := host("a", "cuda", "gpu=48 gpu:0=24 gpu:1=24")
	large := host("b", "cuda", "gpu=40 gpu:0=40")
	for _, test := range []struct {
		name, model, want string
		hosts             []*state.HostRecord
	}{
		{"on both", "m", "a", []*state.HostRecord{two, large}},
		{"on one", "one", "b", []*state.HostRecord{two, large}},
		{"one engine, one GPU", "tei", "b", []*state.HostRecord{two, large}},
		{"evenly", "v", "a", []*state.HostRecord{two}},
		{"not evenly", "v", "b", []*state.HostRecord{host("a", "cuda", "gpu=32 gpu:0=24 gpu:1=8"), large}},
		{"too few", "v3", "", []*state.HostRecord{two, large}},
		{"a GPU that it has", "second", "a", []*state.HostRecord{two, large}},
		{"by Vulkan too", "one", "", []*state.HostRecord{host("a", "vulkan", "gpu=48 gpu:0=24 gpu:1=24")}},
		{"an engine without Vulkan", "tei", "a", []*state.HostRecord{host("a", "vulkan", "gpu=48 gpu:0=24 gpu:1=24")}},
		{"an owner who chooses", "own", "a", []*state.HostRecord{two}},
		{"the sum, where nobody knows", "one", "a", []*state.HostRecord{host("a", "", "gpu=48")}},
		{"invalid", "one", "a", []*state.HostRecord{host("a", "cuda", "gpu=48 gpu:x=1 gpu:-1=3 gpu:99=8 gpu:1=-4 gpu:2=99999999999999999999 gpu:=1")}},
		{"beside another", "embed", "c", []*state.HostRecord{host("b", "cuda", "gpu=80 gpu:0=40 gpu:1=40", loaded("x", "gpu:0=20", 20), loaded("y", "gpu:1=20", 20)), host("c", "cuda", "gpu=40 gpu:0=40")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &state.Snapshot{NowMS: 9, Hosts: map[string]*state.HostRecord{}}
			for _, h := range test.hosts {
				s.Hosts[h.Name] = h
			}
			v := placement.View{Catalog: c}
			p := policy.Place(v.Pool(s), v.Model(s, test.model, ""), nil)
			if p.Host != test.want {
				t.Errorf("placed on %q, want %q: %v", p.Host, test.want, p.Refusal)
			}
		})
	}

	// A need that a runner found counts too, and as a refusal against what its GPUs can hold.
	unknown, _, err := catalog.Parse("models.yaml", []byte("models: {m: {type: embedding, recipe: tei, checkpoint: o/r}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	m, _ := unknown.Model("m")
	rc := unknown.Recipes["tei"]
	load, err := placement.Resolve(m, &rc, placement.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	two.Fields[placement.NeedField+"m"] = placement.Need{Bytes: 30, Device: policy.GPU, Digest: load.Digest()}.String()
	s := &state.Snapshot{NowMS: 9, Hosts: map[string]*state.HostRecord{"a": two, "b": large}}
	v := placement.View{Catalog: unknown}
	if p := policy.Place(v.Pool(s), v.Model(s, "m", ""), nil); p.Host != "b" {
		t.Errorf("after a refusal placed on %q: %v", p.Host, p.Refusal)
	}

	s.NowMS = 11
	two.Fields[placement.NeedField+"m"] = placement.Need{Bytes: 30, Device: policy.GPU, Digest: load.Digest(), Until: 10}.String()
	if m := v.Model(s, "m", ""); m.Memory != 0 || m.NeedByHost["a"].Memory != 0 {
		t.Errorf("after its time: %+v", m)
	}
}
