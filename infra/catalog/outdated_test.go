package catalog

import (
	"slices"
	"strings"
	"testing"
)

func TestOutdated(t *testing.T) {
	const base = `
defaults: {idle: 10m}
models:
  a: {type: llm, recipe: llamacpp, checkpoint: a.gguf, options: {ctx_size: 1, n_batch: 2}}
  b: {type: llm, recipe: standin, device: cpu}
hosts:
  one: {driver: local, labels: [x]}
`
	for _, tc := range []struct {
		name     string
		old, new string // replaced in base
		want     []string
	}{
		{"nothing", "", "", nil},
		{"another order of options", "ctx_size: 1, n_batch: 2", "n_batch: 2, ctx_size: 1", nil},
		{"a default said aloud", "checkpoint: a.gguf", "checkpoint: a.gguf, device: gpu, pin: false", nil},
		{"checkpoint", "a.gguf", "b.gguf", []string{"a"}},
		{"pinned bytes", "a.gguf", "hf://o/r/f@v1, sha256: " + strings.Repeat("Ab", 32), []string{"a"}},
		{"option", "ctx_size: 1", "ctx_size: 3", []string{"a"}},
		{"device by backend", "ctx_size: 1", "llamacpp_backend: cpu", []string{"a"}},
		{"number of GPUs", "checkpoint: a.gguf", "checkpoint: a.gguf, gpus: 2", []string{"a"}},
		{"one of the GPUs", "checkpoint: a.gguf", "checkpoint: a.gguf, device: [\"gpu:1\"]", []string{"a"}},
		{"projector", "{type: llm, recipe: llamacpp,", "{type: llm, mmproj: p, recipe: llamacpp,", []string{"a"}},
		{"type", "{type: llm, recipe: llamacpp,", "{type: embedding, recipe: llamacpp,", []string{"a"}},
		{"encoder cache", "{type: llm, recipe: llamacpp,", "{type: llm, mm_cache: none, recipe: llamacpp,", []string{"a"}},
		{"conversations", "{type: llm, recipe: llamacpp,", "{type: llm, conversations: key, recipe: llamacpp,", []string{"a"}},
		{"what needs no reload", "recipe: standin", "aliases: [x], idle: 1m, pin: true, hosts: [x], fallback: [a], recipe: standin", nil},
		{"content of the recipe", "defaults:", "recipes: {standin: {load_timeout: 7s}}\ndefaults:", []string{"b"}},
		{"another recipe", "{type: llm, recipe: standin,", "{type: tts, recipe: kokoro, checkpoint: a.onnx,", []string{"b"}},
		{"renamed", "  b: ", "  c: ", []string{"b"}},
		{"hosts and defaults", "10m", "11m", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := mustParse(t, base), mustParse(t, strings.Replace(base, tc.old, tc.new, 1))
			for id := range a.index.byID {
				if want := slices.Contains(tc.want, id); Outdated(a, b, id) != want {
					t.Errorf("%s outdated: %v, want %v", id, !want, want)
				}
			}
			if tc.name == "nothing" && a.Version != b.Version {
				t.Error("no change, but another version")
			}
		})
	}
}
