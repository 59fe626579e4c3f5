package system

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// embedding is a stand-in's model whose engine has the given flags.
func embedding(args string) string { return "embedding, " + calls.Options(args) }

// embed asks a model for the embeddings of texts.
func (w *world) embed(ctx context.Context, model string, texts ...string) calls.Answer {
	return w.embedAny(ctx, model, texts)
}

// embedAny is embed for an input of any form.
func (w *world) embedAny(ctx context.Context, model string, input any) calls.Answer {
	body, err := json.Marshal(map[string]any{"model": model, "input": input})
	if err != nil {
		return calls.Answer{Err: err}
	}
	return w.Call(ctx, http.MethodPost, "/v1/embeddings", string(body))
}

// vectors are the embeddings of a response, bit for bit and in order, and its usage.
func (w *world) vectors(a calls.Answer) string {
	w.T.Helper()
	var got struct {
		Data []struct {
			Index     int
			Embedding []float32
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Total  int `json:"total_tokens"`
		}
	}
	if err := json.Unmarshal(a.Body, &got); err != nil || a.Status != http.StatusOK {
		w.T.Fatalf("%v: %v", a, err)
	}
	out := fmt.Sprint(got.Usage)
	for _, d := range got.Data {
		out += fmt.Sprintf("\n%d %v", d.Index, d.Embedding)
	}
	return out
}

// texts are n texts of 16 tokens each.
func texts(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%048d", i) // the stand-in's tokens are 3 bytes
	}
	return out
}

// queueMetrics are the local runner's metrics of embedding queues by series, each of which must name its model. Buckets and
// times are left out.
func (w *world) queueMetrics() map[string]float64 {
	w.T.Helper()
	const prefix = "reveille_runner_embedding_"
	series := regexp.MustCompile(`(?m)^` + prefix + `(\w+)(?:\{(.*)\})? (\S+)$`)
	out := map[string]float64{}
	for _, m := range series.FindAllStringSubmatch(w.runnerMetrics(), -1) {
		if !strings.HasPrefix(m[2], `model="`) {
			w.T.Errorf("no model in %s", m[0])
		}
		if strings.HasSuffix(m[1], "_bucket") || strings.HasSuffix(m[1], "_seconds_sum") {
			continue
		}
		value, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			w.T.Errorf("%s: %v", m[0], err)
		}
		out[strings.TrimSuffix(strings.TrimPrefix(m[2], `model="`), `"`)+" "+m[1]] = value
	}
	return out
}

// wantMetrics waits until a model's metrics have the given values, of which none may be missing.
func (w *world) wantMetrics(model string, want map[string]float64) {
	w.T.Helper()
	lines := func(m map[string]float64) string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(m)) {
			out = append(out, fmt.Sprint("\n", name, " ", m[name]))
		}
		return strings.Join(out, "")
	}
	kit.Becomes(w.T, "metrics of "+model, lines(want), func() string {
		got := map[string]float64{}
		for name, value := range w.queueMetrics() {
			if of, name, _ := strings.Cut(name, " "); of == model {
				got[name] = value
			}
		}
		return lines(got)
	})
}

// TestEmbeddingMemory: an engine that has memory for 300 tokens and not for n_batch, which is 2048. The first full
// request climbs down to what works, later ones begin there; the responses are those of an engine with memory for all,
// and a text that fits nowhere is refused without harm to what was learned. The runner's metrics say all of it, by
// model.
func TestEmbeddingMemory(t *testing.T) {
	w := start(t, calls.Catalogue{"small": embedding("--oom-over 300"), "large": embedding("")}, "--max-loaded-models=-1")
	const requests = 3
	for range requests {
		want := w.vectors(w.embed(t.Context(), "large", texts(128)...))
		if got := w.vectors(w.embed(t.Context(), "small", texts(128)...)); got != want {
			t.Fatalf("the response differs from that of one call:\n%.200s\n%.200s", got, want)
		}
	}
	w.wantMetrics("large", map[string]float64{
		"batches_total": requests, "sequences_total": 128 * requests, "batch_ceiling_tokens": 2048,
		"batch_tokens_count": requests, "batch_tokens_sum": 2048 * requests,
		"n_batch_utilisation_count": requests, "n_batch_utilisation_sum": requests,
		"context_utilisation_count": requests, "context_utilisation_sum": requests * 0.5,
		"queue_wait_seconds_count": requests,
		"oom_retries_total":        0, "oom_failures_total": 0, "oom_retry_tokens_count": 0, "oom_retry_tokens_sum": 0,
		"pending_tokens": 0, "in_flight_tokens": 0, "active_batches": 0,
	})
	if a := w.embed(t.Context(), "small", strings.Repeat("x", 3*301)); a.Status != http.StatusServiceUnavailable || a.Code() != "engine_out_of_memory" {
		t.Errorf("a text of 301 tokens: %v", a)
	}
	// One batch of 2048 tokens, which became calls of 1024, 512 and eight times 256; then eight of 256 for each request, two at
	// one time; then the long text.
	const later = requests - 1
	small := map[string]float64{
		"batches_total": 1 + 8*later + 1, "sequences_total": 128*requests + 1, "batch_ceiling_tokens": 256,
		"batch_tokens_count": 1 + 8*later + 1, "batch_tokens_sum": 2048*requests + 301,
		"n_batch_utilisation_count": 1 + 8*later + 1, "n_batch_utilisation_sum": requests + 301.0/2048,
		"context_utilisation_count": 1 + 8*later + 1, "context_utilisation_sum": (2048 + later*(256+7*512) + 301) / 4096.0,
		"queue_wait_seconds_count": requests + 1,
		"oom_retries_total":        10, "oom_failures_total": 1, "oom_retry_tokens_count": 10, "oom_retry_tokens_sum": 1024 + 512 + 2048,
		"pending_tokens": 0, "in_flight_tokens": 0, "active_batches": 0,
	}
	w.wantMetrics("small", small)
	// Unloaded, a model has no ceiling, and its counters go on where they were.
	if a := w.Manage("/v1/unload", `{"model_name":"small"}`); a.Status != http.StatusOK {
		t.Fatal(a)
	}
	small["batch_ceiling_tokens"] = 0
	w.wantMetrics("small", small)
	w.vectors(w.embed(t.Context(), "small", texts(1)...))
	if got := w.queueMetrics(); got["small batches_total"] != small["batches_total"]+1 || got["small batch_ceiling_tokens"] != 2048 {
		t.Errorf("loaded again: %v batches, ceiling %v", got["small batches_total"], got["small batch_ceiling_tokens"])
	}
}

// TestEmbeddingQueueGauges: what a queue holds while its engine does not answer.
func TestEmbeddingQueueGauges(t *testing.T) {
	w := start(t, calls.Catalogue{"stuck": embedding("--hang infer"), "other": embedding("")}, "--max-loaded-models=-1")
	w.Use("other")
	gauges := func(pending, inFlight, active float64) {
		t.Helper()
		kit.Becomes(t, "pending, in flight, active", [3]float64{pending, inFlight, active}, func() [3]float64 {
			m := w.queueMetrics()
			return [3]float64{m["stuck pending_tokens"], m["stuck in_flight_tokens"], m["stuck active_batches"]}
		})
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	gone := make(chan calls.Answer, 2)
	ask := func(n int) { go func() { gone <- w.embed(ctx, "stuck", texts(n)...) }() }
	ask(2)
	gauges(0, 32, 1)
	ask(3)
	gauges(48, 32, 1)
	leave()
	<-gone
	<-gone
	gauges(0, 0, 0)
	m := w.queueMetrics()
	if m["other pending_tokens"] != 0 || m["other in_flight_tokens"] != 0 || m["other batches_total"] != 1 || m["stuck batch_ceiling_tokens"] != 2048 {
		t.Errorf("metrics %v", m)
	}
}
