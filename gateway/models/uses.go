package models

import (
	"sync"
	"sync/atomic"
	"time"

	"reveille/infra/state"
)

// Uses records this gateway's own uses of models, which listings show before they reach the pool's state. The zero value is
// ready; methods are safe for concurrent use.
type Uses struct {
	mu      sync.RWMutex
	last    map[state.CopyID]*atomic.Int64 // µs since the epoch on this machine's clock; entries are never removed
	streams map[string]int                 // open streams by model

	ahead atomic.Pointer[int64] // µs by which the store's clock is ahead of this machine's; nil before the first listing
}

// Note records a use at this moment.
func (u *Uses) Note(host, model string) {
	now := time.Now().UnixMicro()
	key := state.CopyID{Host: host, Model: model}
	u.mu.RLock()
	at := u.last[key]
	u.mu.RUnlock()
	if at == nil {
		u.mu.Lock()
		if u.last == nil {
			u.last = map[state.CopyID]*atomic.Int64{}
		}
		if at = u.last[key]; at == nil {
			at = new(atomic.Int64)
			u.last[key] = at
		}
		u.mu.Unlock()
	}
	at.Store(now)
}

// usageLate bounds how much too late a record dates a use: the gateway reports the use's age, Redis subtracts it from its own
// clock when the report arrives, and a report may take as long as a call may last.
const usageLate = 200 * time.Millisecond

// Each snapshot gives a new estimate of the difference between the store's clock and this machine's, too small by the
// time its reply took. The estimate is kept so that the time of a use does not change. It is replaced only by one
// larger by moreAhead (its reply was that much faster) or smaller by lessAhead (no reply takes that long, so a clock
// was set).
const (
	moreAhead = usageLate / 2
	lessAhead = 2 * time.Second
)

// aheadBy returns how far ahead the store's clock is, in µs.
func (u *Uses) aheadBy(snap *state.Snapshot) int64 {
	now := snap.NowMS*1000 - snap.Taken.UnixMicro()
	was := u.ahead.Load()
	if was != nil && now-*was <= moreAhead.Microseconds() && *was-now <= lessAhead.Microseconds() {
		return *was
	}
	u.ahead.Store(&now)
	return now
}

// LastOn returns the last use of a model's copy, in µs on the snapshot's clock. This gateway's own record takes
// precedence unless the pool's has a later use, so that uses through one gateway are listed in order, however close
// together.
func (u *Uses) LastOn(snap *state.Snapshot, m *state.ModelRecord, host string) (at int64, own bool) {
	told := m.UsedMS * 1000
	u.mu.RLock()
	noted := u.last[state.CopyID{Host: host, Model: m.ID}]
	u.mu.RUnlock()
	if noted == nil {
		return told, false
	}
	at = noted.Load() + u.aheadBy(snap)
	if told-at > usageLate.Microseconds() {
		return told, false
	}
	return at, true
}

// Stream counts the start (1) or end (-1) of a stream of a model.
func (u *Uses) Stream(model string, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.streams == nil {
		u.streams = map[string]int{}
	}
	if u.streams[model] += n; u.streams[model] == 0 {
		delete(u.streams, model)
	}
}

// Streaming reports whether a stream of the model is open here.
func (u *Uses) Streaming(model string) bool {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.streams[model] > 0
}
