package launch

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/runner/engine"
	"reveille/runner/plan"
	"reveille/testenv"
)

// TestMemoryOfAnEngineIsMeasured compares plans with what the real engine took. With -v it prints the table of
// infra/docs/models.md.
func TestMemoryOfAnEngineIsMeasured(t *testing.T) {
	files := testenv.Models(t)
	l := newLauncher(t)
	l.Finder = engine.Finder{Paths: map[string]string{recipe.LlamaCpp: testenv.Engines(t).LlamaServer}}
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "\nMODEL\tCONTEXT\tESTIMATED MiB\tREADY MiB\tUSED MiB\tDIFFERENCE\tNEXT PLAN MiB\tOFF BY")
	text := strings.Repeat("a long text of many words that is read at once ", 60)
	for _, m := range []struct {
		name, file, path, body string
		of                     policy.Type
	}{
		{"gemma-3-270m", files.Gemma, "/completion", fmt.Sprintf(`{"prompt":%q,"n_predict":1}`, text), policy.LLM},
		{"tiny-gemma", files.Tiny, "/completion", fmt.Sprintf(`{"prompt":%q,"n_predict":1}`, text), policy.LLM},
		{"minilm-l6-v2", files.MiniLM, "/v1/embeddings", fmt.Sprintf(`{"input":%q}`, text[:1800]), policy.Embedding},
		{"minilm-reranker", files.Reranker, "/v1/rerank", fmt.Sprintf(`{"query":"words","documents":[%q]}`, text[:1800]), policy.Reranking},
	} {
		for _, context := range []int64{2048, 32_768} {
			of := catalog.Model{ID: m.name, Type: m.of, Devices: policy.CPU, Checkpoint: m.file, Recipe: recipe.LlamaCpp}
			opts := llamacpp.Effective(recipe.Layers{Request: recipe.Options{"ctx_size": context}})
			p, err := l.Plan(&of, &llamacpp, opts, plan.Share{})
			if err != nil {
				t.Fatal(err)
			}
			e, err := l.Start(t.Context(), &of, &llamacpp, opts, p, engine.GPUs{})
			if err != nil {
				t.Fatal(err)
			}
			ready := e.Measured()
			req := &relay.Request{Method: "POST", Path: []byte(m.path), Body: []byte(m.body), FirstByte: time.Minute}
			req.Add("Authorization", []byte("Bearer "+e.APIKey()))
			r, err := e.Client().Do(nil, req)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := r.AppendBody(nil, 1<<20); err != nil || r.Status() != 200 {
				t.Fatalf("%s: %d %s %v", m.name, r.Status(), body, err)
			}
			_ = r.Close()
			used := e.Measured()
			if err := e.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			next := max(used, p.Estimate)
			if off := float64(used)/float64(next) - 1; ready > used || p.NeedFromMeasurement(used, policy.CPU) != next || next > p.Estimate+p.Estimate/5 || off < -0.1 {
				t.Errorf("%s with %d tokens took %d bytes, then %d, estimated %d", m.name, context, ready, used, p.Estimate)
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%+.0f %%\t%d\t%+.0f %%\n", m.name, context, p.Estimate>>20, ready>>20, used>>20,
				(float64(used)/float64(p.Estimate)-1)*100, next>>20, (float64(used)/float64(next)-1)*100)
		}
	}
	_ = w.Flush()
	t.Log(table.String())
}
