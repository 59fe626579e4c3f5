package sweep

import (
	"context"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// maxCounted is the longest time between two sweeps that counts for the hosts that are on at its end.
const maxCounted = 10 * time.Minute

// countHours adds the time since the last sweep to the day's counters of the hosts whose machines are on, or not known
// to be off. A sweep goes on without it.
func (r *run) countHours(ctx context.Context, s *state.Snapshot) {
	if r.DryRun {
		return
	}
	var on []state.HostOn
	for name, h := range s.Hosts {
		if h.State == policy.Asleep && !h.PowerOffPending() {
			continue
		}
		one := state.HostOn{Name: name}
		if listed, ok := r.catalog.Host(name); ok {
			one.Price = listed.Price
		}
		if active := state.ParseNumber(h.Fields["active_ms"]); active > 0 && h.State == policy.Ready {
			one.Unused = time.Duration(max(0, s.NowMS-active)) * time.Millisecond
		}
		on = append(on, one)
	}
	if err := r.store.CountHours(ctx, maxCounted, on); err != nil {
		r.log.Warn("hours of hosts are not counted", "error", err)
	}
}

// readClosed finds the hosts that are not to be woken. Without the day's hours, none is refused for them.
func (r *run) readClosed(ctx context.Context, s *state.Snapshot) {
	now := r.now(s)
	r.closed = r.catalog.Closed(now, func() map[string]time.Duration {
		day, err := r.store.Day(ctx, now)
		if err != nil {
			r.log.Warn("hours of hosts are unknown", "error", err)
		}
		return day.Awake()
	})
}
