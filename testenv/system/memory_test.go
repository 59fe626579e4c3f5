package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// Five models of the real engine need more than the host's memory budget, with slots for all: the least recently used
// ones go, no more than must. A sixth that only pinned models keep out, and one that is too large, are refused with what
// they need and for what, the budget, and who holds it.
func TestFiveModelsInOneBudget(t *testing.T) {
	files := testenv.Models(t)
	testenv.Engines(t)
	model := func(typ, file string, context int) string {
		return fmt.Sprintf("%s, recipe: llamacpp, checkpoint: %q, options: {ctx_size: %d}", typ, file, context)
	}
	const budget = 1 << 30
	w := start(t, calls.Catalogue{
		"short": model("llm", files.Gemma, 2048), "long": model("llm", files.Gemma, 32_768), "tiny": model("llm", files.Tiny, 8192),
		"vectors": model("embedding", files.MiniLM, 4096), "ranks": model("reranking", files.Reranker, 4096),
		"huge": model("llm", files.Gemma, 2_000_000),
	}, fmt.Sprintf("--memory-budget=cpu=%d", budget), "--max-loaded-models=-1")
	use := func(m string) calls.Answer {
		if w.Models.Type(m) == "llm" { // a few tokens: its context is long
			return w.Manage("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`, m))
		}
		return w.Ask(m)
	}
	for _, step := range []struct{ model, evicted string }{
		{"short", ""}, {"tiny", ""}, {"vectors", ""}, {"ranks", ""}, // 370, 212, 126 and 127 MiB
		{"long", "short"}, // 467
		{"tiny", ""},
		{"short", "long"},
	} {
		a := use(step.model)
		if a.Status != http.StatusOK || a.Header.Get("x-evicted") != step.evicted {
			t.Errorf("%s: %v, evicted %q, want %q; loaded are %v", step.model, a, a.Header.Get("x-evicted"), step.evicted, w.Loaded())
		}
		if sum := w.memory(); sum > budget {
			t.Errorf("after %s: %d bytes of %d", step.model, sum, budget)
		}
	}
	parts := regexp.MustCompile(`\(weights [1-9]\d+, KV cache [1-9]\d+, buffers [1-9]\d+`)
	if a := use("huge"); a.Code() != "model_too_large" || !parts.MatchString(a.Error().Message) || !strings.Contains(a.Error().Message, fmt.Sprintf("more than the %d a host has", budget)) {
		t.Errorf("too large: %v", a)
	}
	for _, m := range []string{"tiny", "short", "ranks"} {
		if a := w.Manage("/v1/internal/pin", fmt.Sprintf(`{"model_name":%q,"pinned":true}`, m)); a.Status != http.StatusOK {
			t.Fatalf("pin: %v", a)
		}
	}
	a := use("long")
	if !parts.MatchString(a.Error().Message) || a.Code() != "slots_pinned_error" || !strings.Contains(a.Error().Message, "but pinned models (ranks, short, tiny) use ") {
		t.Errorf("beside pinned ones: %v", a)
	}
}

// memory is what the loaded models count as together.
func (w *world) memory() (sum int64) {
	w.T.Helper()
	var health struct {
		Models []struct {
			Plan json.RawMessage
		} `json:"all_models_loaded"`
	}
	w.Health(&health)
	for _, m := range health.Models {
		var p struct{ Need int64 }
		if err := json.Unmarshal(m.Plan, &p); err != nil {
			w.T.Error(err)
		}
		sum += p.Need
	}
	return sum
}
