package catalog

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

func TestWith(t *testing.T) {
	base := mustParse(t, documented)
	before, _ := base.Marshal()
	registered := Model{ID: "user.x", Recipe: "llamacpp", Checkpoint: "hf://org/repo/f.gguf", Labels: []string{"embeddings"},
		Options: recipe.Options{"llamacpp_backend": "cpu", "ctx_size": 512}}
	c, err := base.With(registered)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := c.Model("user.x")
	if !ok || m.Type != policy.Embedding || m.Devices != policy.CPU || m.Options["ctx_size"] != int64(512) || m.MMCache != SharePerKey {
		t.Fatalf("%+v", m)
	}
	if id, err := c.Resolve("x"); err != nil || id != "user.x" {
		t.Errorf("resolve: %q, %v", id, err)
	}
	if _, err := base.Resolve("x"); err == nil {
		t.Error("the old catalog knows the new model")
	}
	if after, _ := base.Marshal(); !bytes.Equal(before, after) || registered.Type != "" || registered.Options["ctx_size"] != 512 {
		t.Error("With changed its receiver or its arguments")
	}
	if len(c.Models) != len(base.Models)+1 || slices.ContainsFunc(base.Models, func(m *Model) bool { return Outdated(base, c, m.ID) }) {
		t.Errorf("With changed more than one model: %+v", c.Models)
	}
	if text, err := c.Marshal(); err != nil {
		t.Error(err)
	} else if _, err := Unmarshal(text); err != nil {
		t.Error(err)
	}

	registered.Checkpoint = "hf://org/repo/g.gguf"
	again, err := c.With(registered)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Models {
		if want := m.ID == "user.x"; Outdated(c, again, m.ID) != want {
			t.Errorf("replacing: %s outdated: %v, want %v", m.ID, !want, want)
		}
	}

	for name, m := range map[string]Model{
		"bad name":       {ID: "../x", Recipe: "llamacpp", Checkpoint: "a"},
		"taken alias":    {ID: "user.y", Recipe: "llamacpp", Checkpoint: "a", Aliases: []string{"gemma"}},
		"name of alias":  {ID: "gemma", Recipe: "llamacpp", Checkpoint: "a"},
		"unknown recipe": {ID: "user.y", Recipe: "none", Checkpoint: "a"},
		"argument":       {ID: "user.y", Recipe: "llamacpp", Checkpoint: "a", Options: recipe.Options{"llamacpp_args": "--port 1"}},
		"no host":        {ID: "user.y", Recipe: "flm", Type: policy.LLM, Checkpoint: "a", Hosts: []string{"local"}},
	} {
		var problems Problems
		if _, err := base.With(m); !asProblems(err, &problems) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func asProblems(err error, dst *Problems) bool {
	return errors.As(err, dst) && len(*dst) > 0
}

func TestTypeOfLabels(t *testing.T) {
	for labels, want := range map[string]policy.Type{
		"": policy.LLM, "vision tool-calling": policy.LLM, "embeddings": policy.Embedding, "embedding": policy.Embedding, "reranking": policy.Reranking,
		"audio": policy.Audio, "hot transcription": policy.Audio, "tts": policy.TTS, "image": policy.Image,
		"image embeddings": policy.Embedding,
	} {
		if got := typeOfLabels(strings.Fields(labels)); got != want {
			t.Errorf("%q: %s, want %s", labels, got, want)
		}
	}
}
