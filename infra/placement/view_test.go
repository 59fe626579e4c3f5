package placement_test

import (
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// What one host was too small for is a lower bound on the others, until the model's options change.
func TestRefusalsAreRemembered(t *testing.T) {
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
	s := &state.Snapshot{NowMS: 1, Hosts: map[string]*state.HostRecord{"a": host("a", "cpu=10"), "b": host("b", "cpu=20"), "c": host("c", "cpu=40")}}
	s.Hosts["a"].Fields[placement.NeedField+"m"] = placement.Need{Bytes: 30, Device: policy.CPU, Of: load.Digest()}.String()
	v := placement.View{Catalog: c}
	placed := func() string { return policy.Place(v.Pool(s), v.Model(s, "m", "", false), nil).Host }
	if got := placed(); got != "c" {
		t.Errorf("placed on %q, want c", got)
	}
	s.Saved = map[string]string{"m": `{"ctx_size":512}`}
	if got := placed(); got != "a" {
		t.Errorf("with other options placed on %q, want a", got)
	}
	s.Saved, s.Hosts["a"].Fields["memory_budget"] = nil, "cpu=35" // a's own figure, no refusal any more
	if got := placed(); got != "a" {
		t.Errorf("with a larger budget placed on %q, want a", got)
	}
}

// A retired copy with open requests holds its slot as a busy model does: an idle model makes room, not it.
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
	place := func() policy.Placement { return policy.Place(v.Pool(s), v.Model(s, "m", "", false), nil) }
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

// The models file tells the memory of a host that has not registered yet; then its runner does.
func TestMemoryOfTheModelsFile(t *testing.T) {
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
