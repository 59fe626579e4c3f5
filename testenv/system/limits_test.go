package system

import (
	"strings"
	"testing"

	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// A limit that says nothing sensible is refused at the start.
func TestRule01RefusedLimits(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"0", "-2", "many", "1 2 3 4 5 6 7", "1 0"} {
		if out := refused(t, calls.Catalogue{"a": "llm"}, "--max-loaded-models="+limit); !strings.Contains(out, "max-loaded-models") || !strings.Contains(out, limit) {
			t.Errorf("%q: %s", limit, out)
		}
	}
}

// Rule 2: a use counts at its start and at its end.
func TestRule02UseTimes(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options("--token-delay 20ms --tokens 400"), "b": "llm", "c": "llm"}, "--max-loaded-models=2")
	w.Use("a")
	tick()
	w.Use("b")
	tick()
	order := func() []string { return w.lru("llm") }
	s := w.Chat("a", 300)
	kit.Becomes(t, "order once a is in use", []string{"b", "a"}, order)
	w.Use("b")
	kit.Becomes(t, "order after b was used meanwhile", []string{"a", "b"}, order)
	s.Whole(t)
	kit.Becomes(t, "order after the end of the use of a", []string{"b", "a"}, order)
	if got := w.Use("c").Header.Get("x-evicted"); got != "b" {
		t.Errorf("evicted %q, want b", got)
	}
}
