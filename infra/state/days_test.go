package state_test

import (
	"fmt"
	"testing"
	"time"

	"reveille/infra/state"
)

// TestDays counts hosts, wakes, models and keys on a clock that passes midnight.
func TestDays(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		midnight := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
		b.now = midnight.Add(-90 * time.Second).UnixMilli()
		day := func(back int) state.Day {
			t.Helper()
			d, err := s.Day(ctx, midnight.AddDate(0, 0, -back))
			must(t, err)
			return d
		}
		count := func(on ...state.HostOn) { t.Helper(); must(t, s.CountHours(ctx, time.Minute, on)) }
		hour := state.HostOn{Name: "a:b", Unused: 20 * time.Second, Price: 36}

		count(hour) // the first only starts the clock
		equal(t, "counted", day(1).Counted, 0)
		b.after(30 * time.Second)
		count(hour, state.HostOn{Name: "free", Unused: time.Hour})
		count(hour) // of another warmer, at the same time
		equal(t, "a host with a price", fmt.Sprint(day(1).Hosts["a:b"]), fmt.Sprint(state.HostDay{Awake: 30 * time.Second, Idle: 20 * time.Second, Cost: 0.3}))
		equal(t, "an idle host", fmt.Sprint(day(1).Hosts["free"]), fmt.Sprint(state.HostDay{Awake: 30 * time.Second, Idle: 30 * time.Second}))
		b.after(5 * time.Minute)
		count(hour)
		equal(t, "after a long pause", day(0).Hosts["a:b"].Awake, time.Minute)
		equal(t, "the day before", day(1).Counted, 30*time.Second)

		a := acquire(t, s, want(t, s, "gw", "m", "h"))
		must(t, s.FailWake(ctx, "h", a.WakeToken, "no_capacity", "none"))
		a = acquire(t, s, want(t, s, "gw", "m", "h"))
		must(t, s.EndOverdueWake(ctx, "h", a.WakeToken, "no_capacity", "late"))
		acquire(t, s, want(t, s, "gw", "m", "h"))
		for range 2 { // the second has woken nothing
			_, _, err := s.Register(ctx, state.HostInfo{Name: "h", Boot: "b"})
			must(t, err)
		}
		equal(t, "wakes", fmt.Sprint(day(0).Hosts["h"]), fmt.Sprint(state.HostDay{Ready: 1, Failed: 1, Overdue: 1}))

		usage := state.NewUsageReporter(s)
		usage.CountUse("m", "k1", 1500*time.Millisecond, 10, 4)
		usage.CountUse("m", "", time.Second, 0, 0)
		must(t, usage.Flush(ctx))
		equal(t, "a model", day(0).Models["m"], state.UseDay{Requests: 2, Took: 2500 * time.Millisecond, Input: 10, Output: 4})
		equal(t, "a key", day(0).Keys["k1"], state.UseDay{Requests: 1, Took: 1500 * time.Millisecond, Input: 10, Output: 4})
		equal(t, "no key", day(0).Keys[state.NoKey].Requests, 1)

		ttl := b.rdb.PTTL(ctx, fmt.Sprintf("%sday:%d", prefix, midnight.Unix()/86400)).Val()
		equal(t, "kept", ttl > 62*24*time.Hour && ttl <= 63*24*time.Hour, true)
	})
}

// A day has a bounded number of counters: names beyond them are counted together.
func TestDayIsBounded(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		const models = 6000
		for from := 0; from < models; from += 500 {
			usage := state.NewUsageReporter(s)
			for i := range 500 {
				usage.CountUse(fmt.Sprint("m", from+i), "k", time.Second, 0, 0)
			}
			must(t, usage.Flush(ctx))
		}
		d, err := s.Day(ctx, time.UnixMilli(b.now))
		must(t, err)
		requests := int64(0)
		for _, m := range d.Models {
			requests += m.Requests
		}
		equal(t, "requests", requests, models)
		equal(t, "of a known name", d.Keys["k"].Requests, models)
		if together := d.Models[""].Requests; len(d.Models) > 5600 || together == 0 {
			t.Errorf("%d models, %d requests together", len(d.Models), together)
		}
	})
}
