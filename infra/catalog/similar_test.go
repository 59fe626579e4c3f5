package catalog

import (
	"slices"
	"strings"
	"testing"
)

func TestSimilar(t *testing.T) {
	c := &Catalog{Models: []*Model{
		{ID: "gemma-3-270m", Aliases: []string{"small"}}, {ID: "gemma-3-270m-vision"}, {ID: "Qwen3-8B"}, {ID: "qwen3-30b"}, {ID: "minilm-l6-v2"}, {ID: "x"},
	}}
	c.buildIndex()
	for name, want := range map[string]string{
		"gemma3":                        "gemma-3-270m gemma-3-270m-vision",
		"gemma-3-270":                   "gemma-3-270m gemma-3-270m-vision",
		"gemmma":                        "gemma-3-270m gemma-3-270m-vision",
		"QWEN3:8b":                      "Qwen3-8B qwen3-30b",
		"vision":                        "gemma-3-270m-vision",
		"smal":                          "gemma-3-270m",
		"org/minilm-l6-v2:f16":          "minilm-l6-v2",
		"gpt-4o":                        "",
		"":                              "",
		"\xff":                          "",
		strings.Repeat("minilm", 1<<20): "minilm-l6-v2",
	} {
		if got := c.Similar(name); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%.40q: %q, want %q", name, got, want)
		}
	}
}

func TestShortEntry(t *testing.T) {
	c, _, err := Parse("models.yaml", []byte("models: {a: {checkpoint: /m/A.GGUF}, b: {type: embedding, checkpoint: b.gguf, recipe: vllm}}"))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"a": "llm llamacpp", "b": "embedding vllm"} {
		if m, _ := c.Model(id); string(m.Type)+" "+m.Recipe != want {
			t.Errorf("%s: %s %s", id, m.Type, m.Recipe)
		}
	}
}
