package state_test

import (
	"testing"

	"reveille/infra/state"
)

// Requests are counted by copy, and not among the pool's other counters.
func TestTraffic(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		toucher := state.NewUsageReporter(s)
		for range 2 { // a second batch adds to the first
			toucher.Count("requests", 1)
			toucher.Served("h", "org/model:tag")
			toucher.Served("h", "org/model:tag")
			toucher.Served("g", "m")
			must(t, toucher.Flush(ctx))
		}
		traffic, err := s.Traffic(ctx)
		must(t, err)
		if len(traffic) != 2 || traffic[state.Copy{Host: "h", Model: "org/model:tag"}] != 4 || traffic[state.Copy{Host: "g", Model: "m"}] != 2 {
			t.Errorf("traffic %v", traffic)
		}
		stats, err := s.Stats(ctx)
		must(t, err)
		if len(stats) != 1 || stats["requests"] != 2 {
			t.Errorf("counters %v", stats)
		}
	})
}
