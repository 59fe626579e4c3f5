package launch

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/runner/engine"
	"reveille/runner/host"
	"reveille/runner/plan"
	"reveille/testenv"
)

// TestMeasured compares plans with what the real engine took. With -v it prints the table of infra/docs/models.md.
func TestMeasured(t *testing.T) {
	files := testenv.Models(t)
	l := newLauncher(t)
	l.Finder = engine.Finder{Paths: map[string]string{recipe.LlamaCpp: testenv.Engines(t).LlamaServer}}
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "\nMODEL\tCONTEXT\tESTIMATED MiB\tMEASURED MiB\tDIFFERENCE")
	for _, c := range []struct {
		name, file string
		of         policy.Type
		context    int64
	}{
		{"gemma-3-270m", files.Gemma, policy.LLM, 2048},
		{"gemma-3-270m", files.Gemma, policy.LLM, 8192},
		{"gemma-3-270m", files.Gemma, policy.LLM, 32_768},
		{"tiny-gemma", files.Tiny, policy.LLM, 8192},
		{"minilm-l6-v2", files.MiniLM, policy.Embedding, 4096},
		{"minilm-reranker", files.Reranker, policy.Reranking, 4096},
	} {
		m := catalog.Model{ID: c.name, Type: c.of, Devices: policy.CPU, Checkpoint: c.file, Recipe: recipe.LlamaCpp}
		opts := llamacpp.Effective(recipe.Layers{Request: recipe.Options{"ctx_size": c.context}})
		p, err := l.Plan(&m, &llamacpp, opts, plan.Share{})
		if err != nil {
			t.Fatal(err)
		}
		e, err := l.Start(t.Context(), &m, &llamacpp, opts, p, engine.GPUs{})
		if err != nil {
			t.Fatal(err)
		}
		took := e.(host.Measured).Measured()
		if err := e.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(c.file)
		if err != nil {
			t.Fatal(err)
		}
		if took < info.Size()/2 || took > 4*p.Need {
			t.Errorf("%s with %d tokens took %d bytes, planned %d", c.name, c.context, took, p.Need)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%+.0f %%\n", c.name, c.context, p.Need>>20, took>>20, (float64(took)/float64(p.Need)-1)*100)
	}
	_ = w.Flush()
	t.Log(table.String())
}
