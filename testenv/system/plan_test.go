package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// A text, an embedding and a reranking model are loaded in every order on the real engine: all answer at once, each has
// the plan of its own metadata, and no order changes any plan.
func TestPlansInEveryOrder(t *testing.T) {
	files := testenv.Models(t)
	testenv.Engines(t)
	model := func(typ, file string) string { return fmt.Sprintf("%s, recipe: llamacpp, checkpoint: %q", typ, file) }
	w := start(t, calls.Catalogue{
		"text": model("llm", files.Gemma), "vectors": model("embedding", files.MiniLM), "ranks": model("reranking", files.Reranker),
	}, "--memory-budget=cpu=4GiB")
	kinds := map[string]string{"text": "paged", "vectors": "plain", "ranks": "plain"}
	seen := map[string]string{} // plan by model
	for _, order := range [][]string{
		{"text", "vectors", "ranks"}, {"text", "ranks", "vectors"}, {"vectors", "text", "ranks"},
		{"vectors", "ranks", "text"}, {"ranks", "text", "vectors"}, {"ranks", "vectors", "text"},
	} {
		ask := func(m string) calls.Answer {
			if m == "text" { // a few tokens: its context is long
				return w.Manage("/v1/chat/completions", `{"model":"text","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`)
			}
			return w.Ask(m)
		}
		for _, m := range order {
			if a := ask(m); a.Err != nil || a.Status != http.StatusOK {
				t.Fatalf("%v: %s: %v", order, m, a)
			}
		}
		var all sync.WaitGroup
		for m := range kinds {
			all.Go(func() {
				if a := ask(m); a.Err != nil || a.Status != http.StatusOK || a.Header.Get("x-cold-start") == "1" {
					t.Errorf("%v: %s beside the others: %v, headers %v", order, m, a, a.Header)
				}
			})
		}
		all.Wait()
		for m, p := range w.plans() {
			if p.Kind != kinds[m] || p.Kind == "paged" != (p.KVBytes > 0) {
				t.Errorf("%v: plan of %s: %s", order, m, p.text)
			}
			text := measured.ReplaceAllString(p.text, "") // differs by a few pages
			if was := seen[m]; was != "" && was != text {
				t.Errorf("%v: plan of %s: %s, was %s", order, m, text, was)
			}
			seen[m] = text
		}
		if a := w.Manage("/unload", ""); a.Status != http.StatusOK {
			t.Fatalf("unload: %v", a)
		}
		kit.Becomes(t, "loaded", []string{}, w.Loaded)
	}
	if len(seen) != len(kinds) {
		t.Errorf("plans: %v", seen)
	}

	// Texts that are too long for the reranking model are cut where the client's API cuts them.
	long := strings.Repeat("wörter und words, ", 1500)
	for body, status := range map[string]int{
		`"texts":["kurz",%q],"truncate":true`: 200, `"texts":["kurz",%q]`: 400, `"documents":["kurz",%q],"truncation":true,"top_k":1`: 200,
		`"documents":["kurz",%[1]q,%[1]q]`: 200, `"documents":["kurz",%q],"max_tokens_per_doc":20`: 200, `"documents":["kurz",%q],"truncate":"NONE"`: 400,
	} {
		for _, query := range []string{"q", long} {
			a := w.Manage("/rerank", fmt.Sprintf(`{"model":"ranks","query":%q,`, query)+fmt.Sprintf(body, long)+"}")
			if a.Err != nil || a.Status != status {
				t.Errorf("%s: %.200v", body, a)
			}
		}
	}
}

var measured = regexp.MustCompile(`"measured":\d+,`)

// loadPlan is a plan as the health endpoint shows it.
type loadPlan struct {
	Kind    string
	KVBytes int64 `json:"kv_bytes"`
	text    string
}

// plans are the plans of the loaded models, by name.
func (w *world) plans() map[string]loadPlan {
	w.T.Helper()
	var health struct {
		Models []struct {
			Name string `json:"model_name"`
			Plan json.RawMessage
		} `json:"all_models_loaded"`
	}
	w.Health(&health)
	plans := map[string]loadPlan{}
	for _, m := range health.Models {
		p := loadPlan{text: string(m.Plan)}
		if err := json.Unmarshal(m.Plan, &p); err != nil {
			w.T.Errorf("plan of %s: %v: %s", m.Name, err, m.Plan)
		}
		plans[m.Name] = p
	}
	return plans
}
