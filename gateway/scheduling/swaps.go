package scheduling

import "time"

// swaps counts the loads that evicted another model: in total, and per second over the last minute.
type swaps struct {
	total  uint64
	newest int64 // second since the epoch
	last   [60]int
}

// advance drops the counts that are more than a minute older than now.
func (s *swaps) advance(now time.Time) {
	second := now.Unix()
	for n := min(second-s.newest, int64(len(s.last))); n > 0; n-- {
		s.last[(second-n+1)%int64(len(s.last))] = 0
	}
	s.newest = max(s.newest, second)
}

func (s *swaps) record(now time.Time) {
	s.advance(now)
	s.total++
	s.last[s.newest%int64(len(s.last))]++
}

func (s *swaps) lastMinute(now time.Time) (n int) {
	s.advance(now)
	for _, k := range s.last {
		n += k
	}
	return n
}

// Swaps returns how many of the pool's loads evicted another model since this gateway started, and in the last minute.
func (g *Gate) Swaps() (total uint64, lastMinute int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.swaps.total, g.swaps.lastMinute(time.Now())
}
