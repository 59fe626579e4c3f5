package models

import (
	"maps"
	"sync"
	"time"

	"reveille/infra/state"
)

// Uses records this gateway's own uses of models, which listings show before they reach the pool's state. The zero
// value is ready; methods are safe for concurrent use.
type Uses struct {
	mu   sync.Mutex
	last map[state.CopyID]int64 // µs since the epoch on this machine's clock
	most int                    // entries until those that the pool's state has had for long are removed
}

// Note records a use at this moment.
func (u *Uses) Note(host, model string) {
	now := time.Now().UnixMicro()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = map[state.CopyID]int64{}
	}
	if len(u.last) > u.most {
		maps.DeleteFunc(u.last, func(_ state.CopyID, at int64) bool { return now-at > time.Minute.Microseconds() })
		u.most = 2*len(u.last) + 64
	}
	u.last[state.CopyID{Host: host, Model: model}] = now
}

// usageLate bounds how much too late a record dates a use: the runner reports the use's age, Redis subtracts it from
// its own clock when the report arrives, and a report may take as long as a call may last.
const usageLate = 200 * time.Millisecond

// LastOn returns the last use of a model's copy, in µs since the epoch. This gateway's own record takes precedence
// unless the pool's has a later use, so that uses through one gateway are listed in order, however close together.
// Clocks that differ by more than usageLate only make this gateway's own uses appear that much later or not at once.
func (u *Uses) LastOn(m *state.ModelRecord, host string) (at int64, own bool) {
	reported := m.UsedMS * 1000
	u.mu.Lock()
	local, used := u.last[state.CopyID{Host: host, Model: m.ID}]
	u.mu.Unlock()
	if !used || reported-local > usageLate.Microseconds() {
		return reported, false
	}
	return local, true
}
