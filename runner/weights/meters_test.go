package weights_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metrics"

	"reveille/runner/weights"
)

func TestPullsAreCounted(t *testing.T) {
	set := metrics.NewSet()
	b := start(t, func(c *weights.Config) { c.Metrics = set })
	b.hub.Put("o/r", "a.gguf", bytes.Repeat([]byte("x"), 100_000))
	b.must(b.cache.Pull(t.Context(), place("hf://o/r/a.gguf")))
	b.must(b.cache.Pull(t.Context(), place("hf://o/r/a.gguf"))) // is there
	b.fails("hf://o/r/none.gguf", weights.ErrNotFound)
	var text bytes.Buffer
	set.WritePrometheus(&text)
	for _, want := range []string{
		"reveille_runner_pull_bytes_total 100000", "reveille_runner_pull_failures_total 1", "reveille_runner_pull_seconds_count 1", "reveille_runner_weights_bytes 100000",
	} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}
