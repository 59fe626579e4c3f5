package costs

import (
	"context"
	"sync"
	"time"

	"reveille/infra/state"
)

// readEvery is the time between two reads of today's counters.
const readEvery = 30 * time.Second

// Reader keeps the counters of this month's days in memory, so that nobody who needs them waits for Redis. It is safe
// for concurrent use.
type Reader struct {
	store *state.Store

	mu   sync.Mutex
	days map[time.Time]state.Day // of this month, by midnight
	read time.Time               // when today's were read last; zero: never
}

// NewReader creates a reader that knows nothing before Run.
func NewReader(store *state.Store) *Reader {
	return &Reader{store: store, days: map[time.Time]state.Day{}}
}

// Run reads until ctx ends: at first the days of the month, then today's counters again and again.
func (r *Reader) Run(ctx context.Context) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for {
		r.refresh(ctx, time.Now().UTC())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// refresh reads the days that may have changed since the last time. Without Redis, what is known stays.
func (r *Reader) refresh(ctx context.Context, now time.Time) {
	month, today := midnight(now).AddDate(0, 0, 1-now.Day()), midnight(now)
	from := month
	r.mu.Lock()
	if last := midnight(r.read); last.After(from) {
		from = last // that day may have ended since
	}
	r.mu.Unlock()
	for d := from; !d.After(today); d = d.AddDate(0, 0, 1) {
		one, err := r.store.Day(ctx, d)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.days[d] = one
		r.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read = now
	for d := range r.days {
		if d.Before(month) {
			delete(r.days, d)
		}
	}
}

// Today returns the counters of the day of now, empty if they are unknown.
func (r *Reader) Today(now time.Time) state.Day {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.days[midnight(now.UTC())]
}

// AwakeToday returns how long each host has been awake today, as of the last read.
func (r *Reader) AwakeToday() map[string]time.Duration { return r.Today(time.Now()).Awake() }

// Month returns the month of now and the counters of its days.
func (r *Reader) Month(now time.Time) (month time.Time, days []state.Day) {
	now = now.UTC()
	month = midnight(now).AddDate(0, 0, 1-now.Day())
	r.mu.Lock()
	defer r.mu.Unlock()
	for d := month; !d.After(now); d = d.AddDate(0, 0, 1) {
		days = append(days, r.days[d])
	}
	return month, days
}

func midnight(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
}
