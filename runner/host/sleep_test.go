package host_test

import (
	"errors"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/runner/host"
)

// A host confirms its sleep and registers for who wants it awake again when it hears of it, not at its next beat. The
// test beats in its place.
func TestSleepAndRecallDoNotWaitForABeat(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		b := startOn(t, addr, func(c *host.Config) { c.Beat = time.Hour })
		in := func(want policy.HostState) func() bool {
			return func() bool {
				s, err := b.store.Snapshot(t.Context())
				if err != nil {
					return false
				}
				_, _ = b.store.Beat(t.Context(), "h", s.Hosts["h"].Generation, false, nil) // refused while it is wanted
				return s.Hosts["h"].State == want
			}
		}
		for round := range 3 {
			first := b.host.View().Generation
			b.until("the commit of a sleep", func() bool {
				if !in("ready")() {
					return false
				}
				s, err := b.store.Snapshot(t.Context())
				b.must(err)
				_, err = b.store.CommitSleep(t.Context(), "h", "sweep", s.Revision, s.Hosts["h"].Fields["active_ms"])
				if err != nil && !errors.Is(err, state.ErrStale) {
					t.Fatal(err)
				}
				return err == nil
			})
			b.until("its confirmation", in("asleep"))
			s, err := b.store.Snapshot(t.Context())
			b.must(err)
			token := s.Hosts["h"].Fields["sleep_token"]
			b.must(b.store.BeginStop(t.Context(), "h", "sweep", token))
			b.must(b.store.EndStop(t.Context(), "h", "sweep", token, "its machine does not go off"))
			ticket := b.load("a")
			b.ready(ticket)
			if now := b.host.View().Generation; now <= first {
				t.Errorf("round %d: generation %d after %d", round, now, first)
			}
			b.outcome(b.unload("a"))
		}
	})
}
