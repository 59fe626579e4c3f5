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
			toucher.Answered(state.Answer{Host: "h", Model: "org/model:tag"})
			toucher.Answered(state.Answer{Host: "h", Model: "org/model:tag"})
			toucher.Answered(state.Answer{Host: "g", Model: "m"})
			must(t, toucher.Flush(ctx))
		}
		traffic, err := s.Traffic(ctx)
		must(t, err)
		if len(traffic) != 2 || traffic[state.CopyID{Host: "h", Model: "org/model:tag"}] != 4 || traffic[state.CopyID{Host: "g", Model: "m"}] != 2 {
			t.Errorf("traffic %v", traffic)
		}
		stats, err := s.Stats(ctx)
		must(t, err)
		if len(stats) != 1 || stats["request_count_total"] != 6 {
			t.Errorf("counters %v", stats)
		}
	})
}
