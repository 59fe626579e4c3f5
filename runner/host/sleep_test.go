package host_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/runner/devices"
	"reveille/runner/host"
)

// A host confirms its sleep, and registers again when it is wanted awake, as soon as it learns of that, not at its next
// beat. The test beats in its place.
func TestSleepAndRecallDoNotWaitForABeat(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		looks := 0 // guarded by the host's lock
		b := startOn(t, addr, func(c *host.Config) {
			c.Beat = time.Hour
			c.Detect = func(context.Context) host.Hardware {
				looks++
				return host.Hardware{
					Devices: policy.CPU, Budget: map[policy.Devices]int64{policy.CPU: int64(looks) << 20}, Totals: map[policy.Devices]int64{policy.CPU: 1 << 30},
					Found: devices.Found{Devices: []devices.Device{{Kind: "cpu", Total: 1 << 30, Source: "system"}}},
				}
			}
		})
		in := func(want policy.HostState) func() bool {
			return func() bool {
				s, err := b.store.Snapshot(t.Context())
				if err != nil {
					return false
				}
				_, _, _ = b.store.Beat(t.Context(), "h", s.Hosts["h"].Generation, false, nil) // refused while it is wanted
				return s.Hosts["h"].State == want
			}
		}
		for round := range 3 {
			first := b.host.View().Generation
			b.until("it is ready", in("ready"))
			b.commitSleep()
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
			s, err = b.store.Snapshot(t.Context())
			b.must(err)
			f := s.Hosts["h"].Fields
			if s.Hosts["h"].Devices != "cpu" || f["memory_budget"] != fmt.Sprintf("cpu=%d", (round+1)<<20) || f["memory_total"] != "cpu=1073741824" ||
				f["found"] != `{"devices":[{"kind":"cpu","index":0,"total":1073741824,"source":"system"}]}` {
				t.Errorf("round %d: devices %q, %q", round, s.Hosts["h"].Devices, f)
			}
			b.outcome(b.unload("a"))
		}
	})
}

// A machine that somebody uses does not confirm a sleep, and its use counts as activity. Once it is no longer used, its
// host sleeps as any other.
func TestMachineInUseStaysOn(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		var used atomic.Bool
		used.Store(true)
		b := startOn(t, addr, func(c *host.Config) {
			c.UseInterval = 20 * time.Millisecond
			c.InUse = func(context.Context) string {
				if used.Load() {
					return "somebody plays"
				}
				return ""
			}
		})
		me := func() *state.HostRecord {
			s, err := b.store.Snapshot(t.Context())
			b.must(err)
			return s.Hosts["h"]
		}
		b.commitSleep()
		before := me().ActiveMS
		b.until("it is ready again, and two beats with activity", func() bool {
			h := me()
			return h.State == policy.Ready && h.ActiveMS > before+60
		})
		used.Store(false)
		b.commitSleep()
		b.until("its confirmation", func() bool { return me().State == policy.Asleep })
	})
}

// commitSleep makes the host drain, as a sweep does.
func (b *bench) commitSleep() {
	b.Helper()
	b.until("the commit of a sleep", func() bool {
		s, err := b.store.Snapshot(b.Context())
		b.must(err)
		_, err = b.store.CommitSleep(b.Context(), "h", "sweep", s.RevisionOf("h", ""), s.Hosts["h"].Fields["active_ms"])
		if err != nil && !errors.Is(err, state.ErrStale) {
			b.Fatal(err)
		}
		return err == nil
	})
}
