package catalog

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"reveille/infra/policy"
)

const named = `
models:
  gemma: {type: llm, recipe: standin, device: cpu, aliases: [g, "tagged:latest", Mixed]}
  tagged: {type: llm, recipe: standin, device: cpu}
  org/name: {type: llm, recipe: standin, device: cpu, aliases: [shared]}
  user.mine: {type: llm, recipe: standin, device: cpu}
  extra.more: {type: llm, recipe: standin, device: cpu}
  user.both: {type: llm, recipe: standin, device: cpu}
  extra.both: {type: llm, recipe: standin, device: cpu}
  plain: {type: llm, recipe: standin, device: cpu}
  hf-4: {type: llm, recipe: llamacpp, checkpoint: hf://lab/weights/w-Q4_K_M.gguf}
  hf-8: {type: llm, recipe: llamacpp, checkpoint: hf://lab/weights/w-Q8_0-00001-of-00002.gguf}
  hf-one: {type: llm, recipe: llamacpp, checkpoint: hf://lab/single/only.gguf}
  hf-a: {type: llm, recipe: llamacpp, checkpoint: hf://lab/twice/x.Q4_0.gguf}
  hf-b: {type: llm, recipe: llamacpp, checkpoint: hf://lab/twice/x.Q4_0.gguf}
  Case: {type: llm, recipe: standin, device: cpu}
  CASE: {type: llm, recipe: standin, device: cpu}
  mixed-case: {type: embedding, recipe: standin, device: cpu, aliases: ["Tag:V1"]}
defaults: {models: {llm: g}}
`

func TestResolve(t *testing.T) {
	c := mustParse(t, named)
	for _, tc := range []struct {
		step, name, want string // want: an id, "" for none, or candidates separated by spaces
	}{
		{"1", "gemma", "gemma"},
		{"1 with a slash", "org/name", "org/name"},
		{"1 goes before 6", "Case", "Case"},
		{"2", "g", "gemma"},
		{"2", "shared", "org/name"},
		{"2 goes before 3", "tagged:latest", "gemma"},
		{"3", "gemma:latest", "gemma"},
		{"3 for an alias", "g:latest", "gemma"},
		{"3 for a name with a slash", "org/name:latest", "org/name"},
		{"3 drops one only", "gemma:latest:latest", ""},
		{"3 drops no other tag", "gemma:v1", ""},
		{"4", "openai/gemma", "gemma"},
		{"4 for an alias", "openai/g", "gemma"},
		{"4 with a tag", "openai/gemma:latest", "gemma"},
		{"4 keeps the rest whole", "router/org/name", "org/name"},
		{"4 name to user.name", "mine", "user.mine"},
		{"4 name to extra.name", "more", "extra.more"},
		{"4 user.name to name", "user.plain", "plain"},
		{"4 extra.name to name", "extra.plain", "plain"},
		{"4 builtin.name to name", "builtin.plain", "plain"},
		{"4 several", "both", "extra.both user.both"},
		{"4 not the other way", "name", ""},
		{"4 needs a name", "openai/", ""},
		{"5 repository", "lab/single", "hf-one"},
		{"5 quantisation", "lab/weights:Q4_K_M", "hf-4"},
		{"5 quantisation of shards", "lab/weights:Q8_0", "hf-8"},
		{"5 several", "lab/weights", "hf-4 hf-8"},
		{"5 several of one quantisation", "lab/twice:Q4_0", "hf-a hf-b"},
		{"5 minds case", "lab/weights:q4_k_m", ""},
		{"6", "GEMMA", "gemma"},
		{"6 for an alias", "mIXED", "gemma"},
		{"6 with a tag", "Gemma:LATEST", "gemma"},
		{"6 other tag", "tag:v1", "mixed-case"},
		{"6 several", "case", "CASE Case"},
		{"6 several with a tag", "TAGGED:latest", "gemma tagged"},
		{"none", "nobody", ""},
		{"none", "", ""},
		{"none", ":latest", ""},
		{"none", "/", ""},
		{"none, other letters that fold", "\u212a", ""},
		{"none, overlong", strings.Repeat("x", 1<<20), ""},
	} {
		t.Run(tc.step, func(t *testing.T) {
			got, err := c.Resolve(tc.name)
			var ambiguous *AmbiguousError
			var notFound *NotFoundError
			switch want := strings.Fields(tc.want); {
			case len(want) == 0 && !errors.As(err, &notFound):
				t.Errorf("%q: got %q, %v, want not found", tc.name, got, err)
			case len(want) == 0 && len(err.Error()) > 200:
				t.Errorf("message of %d bytes", len(err.Error()))
			case len(want) == 1 && (err != nil || got != want[0]):
				t.Errorf("%q: got %q, %v, want %q", tc.name, got, err, want[0])
			case len(want) > 1 && (!errors.As(err, &ambiguous) || !slices.Equal(ambiguous.Candidates, want)):
				t.Errorf("%q: got %q, %v, want candidates %v", tc.name, got, err, want)
			}
		})
	}
	if id, ok := c.Default(policy.LLM); !ok || id != "gemma" {
		t.Errorf("default %q", id)
	}
	if _, ok := c.Default(policy.Image); ok {
		t.Error("a default for images")
	}
	if _, err := new(Catalog).Resolve("x"); err == nil {
		t.Error("the zero catalog resolves")
	}
}

func TestWithNames(t *testing.T) {
	c := mustParse(t, named)
	more := c.WithNames(map[string]string{"late": "g", "my/Own:tag": "lab/single", "gemma": "hf-one", "shared": "hf-one", "nowhere": "nobody", "CASE.": "hf-4", "case.": "hf-8"})
	for name, want := range map[string]string{
		"late": "gemma", "late:latest": "gemma", "openai/late": "gemma", "user.late": "gemma", "LATE": "gemma",
		"my/Own:tag": "hf-one", "MY/OWN:TAG": "hf-one",
		"gemma": "gemma", "shared": "org/name", // the catalog's own names take precedence
		"nowhere": "", "Case.": "",
	} {
		if got, err := more.Resolve(name); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	if id, err := c.Resolve("late"); err == nil {
		t.Errorf("the catalog itself was changed: %s", id)
	}
	if _, err := new(Catalog).WithNames(map[string]string{"a": "b"}).Resolve("a"); err == nil {
		t.Error("a name of nothing resolves")
	}
}

func FuzzResolve(f *testing.F) {
	c := mustParse(f, named)
	for _, s := range []string{"gemma", "a/b:latest", "user.both", "\xff/\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		id, err := c.Resolve(name)
		if _, ok := c.Model(id); ok != (err == nil) {
			t.Fatalf("%q: %q, %v", name, id, err)
		}
	})
}
