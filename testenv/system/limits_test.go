package system

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// types in the order of --max-loaded-models.
var types = []string{"llm", "embedding", "reranking", "audio", "image", "tts"}

// Rule 1: at most N models of a type are loaded, the least recently used of that type goes, and types do not evict each
// other. A random walk of requests is compared with the naive twin below after each step.
func TestRule01Limits(t *testing.T) {
	for _, tc := range []struct {
		limit string
		want  []int // by types; -1 is no limit
		walk  map[string]int
	}{
		{"1", []int{1, 1, 1, 1, 1, 1}, map[string]int{"llm": 3, "embedding": 2, "reranking": 2, "audio": 2, "image": 2, "tts": 2}},
		{"3", []int{3, 3, 3, 3, 3, 3}, map[string]int{"llm": 5, "embedding": 4}},
		{"-1", []int{-1, -1, -1, -1, -1, -1}, map[string]int{"llm": 6, "reranking": 4}},
		{"5 2 4", []int{5, 2, 4, 1, 1, 1}, map[string]int{"llm": 7, "embedding": 3, "reranking": 5, "image": 2}},
	} {
		t.Run(strings.ReplaceAll(tc.limit, " ", "_"), func(t *testing.T) {
			t.Parallel()
			models := catalogue{}
			var names []string
			for typ, n := range tc.walk {
				for i := range n {
					name := fmt.Sprintf("%s-%d", typ, i)
					models[name] = typ
					names = append(names, name)
				}
			}
			slices.Sort(names)
			w := start(t, models, "--max-loaded-models="+tc.limit)
			limits := map[string]int{}
			for i, typ := range types {
				limits[typ] = tc.want[i]
			}
			twin := map[string][]string{} // type → loaded models, the least recently used first
			random := rand.New(rand.NewPCG(1, 2))
			random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			for step := range len(names) + 10 {
				model := names[step%len(names)]
				if step >= len(names) {
					model = names[random.IntN(len(names))]
				}
				typ := models[model]
				cold, evicted := expect(twin, limits[typ], typ, model)
				a := w.use(model)
				if got := a.header.Get("x-cold-start") == "1"; got != cold {
					t.Fatalf("step %d, %s: cold start %v, want %v", step, model, got, cold)
				}
				if got := a.header.Get("x-evicted"); got != evicted {
					t.Fatalf("step %d, %s: x-evicted %q, want %q", step, model, got, evicted)
				}
				kit.Becomes(t, fmt.Sprintf("step %d, %s: order of %s", step, model, typ), twin[typ], func() []string { return w.lru(typ) })
				tick()
			}
			var want []string
			for _, list := range twin {
				want = append(want, list...)
			}
			slices.Sort(want)
			kit.Becomes(t, "loaded in the end", want, w.loaded)
		})
	}
}

// expect moves the twin: a use of a model under a type's limit.
func expect(twin map[string][]string, limit int, typ, model string) (cold bool, evicted string) {
	list := twin[typ]
	i := slices.Index(list, model)
	if cold = i < 0; !cold {
		list = slices.Delete(list, i, i+1)
	} else if len(list) == limit {
		evicted, list = list[0], slices.Clone(list[1:])
	}
	twin[typ] = append(list, model)
	return cold, evicted
}

// A limit that says nothing sensible is refused at the start.
func TestRule01RefusedLimits(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"0", "-2", "many", "1 2 3 4 5 6 7", "1 0"} {
		if out := refused(t, catalogue{"a": "llm"}, "--max-loaded-models="+limit); !strings.Contains(out, "max-loaded-models") && !strings.Contains(out, limit) {
			t.Errorf("%q: %s", limit, out)
		}
	}
}

// Rule 2: a use counts at its start and at its end.
func TestRule02UseTimes(t *testing.T) {
	t.Parallel()
	w := start(t, catalogue{"a": "llm, " + calls.Options("--token-delay 20ms --tokens 40"), "b": "llm", "c": "llm"}, "--max-loaded-models=2")
	w.use("a")
	tick()
	w.use("b")
	tick()
	order := func() []string { return w.lru("llm") }
	s := w.chat("a", 30)
	kit.Becomes(t, "order once a is in use", []string{"b", "a"}, order)
	w.use("b")
	kit.Becomes(t, "order after b was used meanwhile", []string{"a", "b"}, order)
	s.whole()
	kit.Becomes(t, "order after the end of the use of a", []string{"b", "a"}, order)
	if got := w.use("c").header.Get("x-evicted"); got != "b" {
		t.Errorf("evicted %q, want b", got)
	}
}
