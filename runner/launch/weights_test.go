package launch

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/rpc"
	"reveille/runner/engine"
	"reveille/runner/host"
	"reveille/runner/plan"
	"reveille/runner/weights"
	"reveille/runner/weights/hf"
	"reveille/testenv"
	"reveille/testenv/hub"
)

// reading returns a recipe of the stand-in that needs its model's files.
func reading() recipe.Recipe {
	r := recipe.Shipped()["standin"]
	r.Checkpoint = recipe.CheckpointPath
	r.Command = append(r.Command, recipe.Group{"--need-file", "{model}"}, recipe.Group{"--need-file", "{mmproj}"})
	return r
}

func fetching(t *testing.T, most int64) (*Launcher, *hub.Hub) {
	t.Helper()
	l, h := newLauncher(t), hub.Start(t)
	src, err := hf.New(h.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	l.Weights, err = weights.Open(weights.Config{
		Dir: t.TempDir(), Bytes: most, Margin: 1, Wanted: time.Millisecond, Tries: 2, Pause: time.Millisecond, Sources: map[catalog.Scheme]weights.Source{catalog.SchemeHF: src},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Weights.Close()
		src.Close()
	})
	return l, h
}

// A model's files, including its projector's, are fetched, passed to the engine and kept while it runs.
func TestMissingWeightsAreFetched(t *testing.T) {
	l, h := fetching(t, 2500)
	for _, name := range []string{"a.bin", "mmproj-a.bin", "b.bin"} {
		h.Put("o/r", name, bytes.Repeat([]byte(name[:1]), 1000))
	}
	a := catalog.Model{ID: "a", Type: policy.LLM, Devices: policy.CPU, Checkpoint: "hf://o/r/a.bin", MMProj: "hf://o/r/mmproj-a.bin@v1"}
	b := catalog.Model{ID: "b", Type: policy.LLM, Devices: policy.CPU, Checkpoint: "hf://o/r/b.bin"}
	if l.HasFiles(&a) || l.path(a.Checkpoint, "") != "" {
		t.Error("there before they were fetched")
	}
	if err := l.Pull(t.Context(), &a); err != nil {
		t.Fatal(err)
	}
	if done, total := l.Progress(&a); !l.HasFiles(&a) || done != 2000 || total != 2000 {
		t.Errorf("%d of %d", done, total)
	}
	r := reading()
	e, err := l.Start(t.Context(), &a, &r, nil, plan.Plan{}, engine.GPUs{})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{l.path(a.Checkpoint, ""), l.path(a.MMProj, "")} {
		if _, err := os.Stat(file); err != nil || !strings.Contains(e.Command(), file) {
			t.Errorf("%q, %v; command %s", file, err, e.Command())
		}
	}
	var refused *host.Error
	if err := l.Pull(t.Context(), &b); !errors.As(err, &refused) || refused.Code != "disk_full" || !refused.Final || !l.HasFiles(&a) {
		t.Errorf("files of a running engine were evicted: %v", err)
	}
	if err := e.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) { // its end releases the files
		if err := l.Pull(t.Context(), &b); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if l.HasFiles(&a) {
		t.Error("both fit where one does")
	}

	// A start fetches files removed since the pull, and a failed start releases what it held.
	broken := r
	broken.Command = append(r.Command, recipe.Group{"--fail-load", "-1"})
	for range 2 {
		if e, err := l.Start(t.Context(), &a, &broken, nil, plan.Plan{}, engine.GPUs{}); err == nil || e != nil {
			t.Fatal(e, err)
		}
		if err := l.Pull(t.Context(), &b); err != nil {
			t.Error("a failed start keeps its weights:", err)
		}
	}
}

func TestUnavailableWeightsAreReported(t *testing.T) {
	l, h := fetching(t, 0)
	h.Put("o/r", "m.gguf", []byte("weights"))
	h.Damage("o/r", "m.gguf")
	for checkpoint, code := range map[string]string{
		"hf://o/r/gone.gguf": "model_file_not_found", "hf://o/r/m.gguf": rpc.CodeModelLoadError, "s3://b/k": rpc.CodeModelLoadError,
	} {
		m := catalog.Model{ID: "m", Type: policy.LLM, Devices: policy.CPU, Checkpoint: checkpoint}
		r := reading()
		_, startErr := l.Start(t.Context(), &m, &r, nil, plan.Plan{}, engine.GPUs{})
		for _, err := range []error{l.Pull(t.Context(), &m), startErr} {
			var e *host.Error
			if !errors.As(err, &e) || e.Code != code || !e.Final || !strings.HasPrefix(e.Message, "weights "+checkpoint+": ") || strings.Contains(e.Message, "http") {
				t.Errorf("%s: %v", checkpoint, err)
			}
		}
	}
}

// The plan of a model with fetched weights is the plan of its file.
func TestPlanUsesFetchedWeights(t *testing.T) {
	l, h := fetching(t, 0)
	raw, err := os.ReadFile(testenv.Models(t).MiniLM)
	if err != nil {
		t.Fatal(err)
	}
	h.Put("o/r", "m.gguf", raw)
	m := catalog.Model{ID: "m", Type: policy.Embedding, Devices: policy.CPU, Checkpoint: "hf://o/r/m.gguf"}
	r := recipe.Shipped()["llamacpp"]
	for _, longest := range []int{2048, 512} {
		p, err := l.Plan(&m, &r, nil, plan.Share{})
		if err != nil || p.Longest != longest {
			t.Errorf("%+v %v", p, err)
		}
		if err := l.Pull(t.Context(), &m); err != nil {
			t.Fatal(err)
		}
	}
}
