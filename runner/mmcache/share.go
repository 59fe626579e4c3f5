package mmcache

import "sync"

// shares tells single requests' parts of an attachment's counts, where they can be told.
type shares struct {
	mu      sync.Mutex
	open    int    // requests with media in the engine
	crowded uint64 // rises when a request begins while another is open
}

// Request begins a request with media. Call the returned function once, when the engine's first byte is there or the
// request failed: it returns the media of this request that were served from the cache and that were encoded, and
// whether that is exact, which it is when no other request with media was in the engine at any moment between.
func (a *Attachment) Request() func() (hits, misses int64, exact bool) {
	s := &a.shares
	s.mu.Lock()
	alone := s.open == 0
	s.open++
	if !alone {
		s.crowded++
	}
	crowded := s.crowded
	s.mu.Unlock()
	h, m := a.Counts()
	return func() (int64, int64, bool) {
		h2, m2 := a.Counts()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
		return h2 - h, m2 - m, alone && s.crowded == crowded
	}
}
