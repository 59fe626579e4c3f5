package catalog

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	const base = `
defaults: {idle: 10m}
models:
  a: {type: llm, recipe: llamacpp, checkpoint: a.gguf, options: {ctx_size: 1, n_batch: 2}}
  b: {type: llm, recipe: standin, device: cpu}
hosts:
  one: {driver: local}
  two: {driver: local, labels: [x]}
warm:
- {model: a, schedule: "0 8 * * *", for: 1h}
`
	for _, tc := range []struct {
		name     string
		old, new string // replaced in base
		want     Changes
	}{
		{"nothing", "", "", Changes{}},
		{"another order of options", "ctx_size: 1, n_batch: 2", "n_batch: 2, ctx_size: 1", Changes{}},
		{"a default said aloud", "checkpoint: a.gguf", "checkpoint: a.gguf, device: gpu, pin: false", Changes{}},
		{"checkpoint", "a.gguf", "b.gguf", changed("a", []string{"checkpoint"}, nil)},
		{"pinned bytes", "a.gguf", "hf://o/r/f@v1, sha256: " + strings.Repeat("Ab", 32), changed("a", []string{"checkpoint", "sha256"}, nil)},
		{"option", "ctx_size: 1", "ctx_size: 3", changed("a", []string{"options"}, nil)},
		{"device by backend", "ctx_size: 1", "llamacpp_backend: cpu", changed("a", []string{"device", "options"}, nil)},
		{"type and projector", "{type: llm, recipe: llamacpp,", "{type: embedding, mmproj: p, recipe: llamacpp,", changed("a", []string{"mmproj", "type"}, nil)},
		{"what needs no reload", "recipe: standin", "aliases: [x], idle: 1m, pin: true, hosts: [x], fallback: [a], recipe: standin",
			changed("b", nil, []string{"aliases", "fallback", "hosts", "idle", "pin"})},
		{"content of the recipe", "defaults:", "recipes: {standin: {load_timeout: 7s}}\ndefaults:", changed("b", []string{"recipe"}, nil)},
		{"another recipe", "{type: llm, recipe: standin,", "{type: tts, recipe: kokoro, checkpoint: a.onnx,",
			changed("b", []string{"checkpoint", "recipe", "type"}, nil)},
		{"renamed", "  b: ", "  c: ", Changes{Added: []string{"c"}, Removed: []string{"b"}}},
		{"hosts", "two: {driver: local, labels: [x]}", "three: {driver: local}", Changes{Hosts: []string{"three", "two"}}},
		{"host", "labels: [x]", "labels: [y]", Changes{Hosts: []string{"two"}}},
		{"defaults", "10m", "11m", Changes{Defaults: true}},
		{"warm", "for: 1h", "for: 2h", Changes{Warm: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := mustParse(t, base), mustParse(t, strings.Replace(base, tc.old, tc.new, 1))
			got := Diff(a, b)
			if tc.want.Changed == nil {
				tc.want.Changed = map[string]ModelChanges{}
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			for id := range a.index.byID {
				if want := len(tc.want.Changed[id].Reload) > 0 || slices.Contains(tc.want.Removed, id); Outdated(a, b, id) != want {
					t.Errorf("%s outdated: %v, want %v", id, !want, want)
				}
			}
			if tc.name == "nothing" && (!isEmpty(got) || a.Version != b.Version) {
				t.Error("no change, but not empty")
			}
		})
	}
}

func isEmpty(c Changes) bool {
	return len(c.Added)+len(c.Removed)+len(c.Changed)+len(c.Hosts) == 0 && !c.Defaults && !c.Warm
}

func changed(id string, reload, update []string) Changes {
	return Changes{Changed: map[string]ModelChanges{id: {Reload: reload, Update: update}}}
}

func TestDiffOfNothing(t *testing.T) {
	c := mustParse(t, documented)
	if d := Diff(nil, c); !slices.Equal(d.Added, []string{"gemma-3-270m"}) || len(d.Hosts) != 3 || !d.Defaults || !d.Warm {
		t.Errorf("%+v", d)
	}
	if d := Diff(c, nil); !slices.Equal(d.Removed, []string{"gemma-3-270m"}) || isEmpty(d) {
		t.Errorf("%+v", d)
	}
	if d := Diff(nil, nil); !isEmpty(d) || len(d.Changed) != 0 {
		t.Errorf("%+v", d)
	}
}
