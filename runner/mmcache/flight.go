package mmcache

import "sync"

// flights knows which media are being encoded on this host, so that others wait for the result. It is safe for
// concurrent use.
//
// Nobody waits who leads anything, so waits cannot form a circle; and nobody waits for a partial flight, which ends
// only with a later encode, perhaps one of the waiter's own thread.
type flights struct {
	mu sync.Mutex
	m  map[field]*flight
}

type flight struct {
	leader  *session
	partial bool
	done    chan struct{} // closed by whoever takes the flight out of the map
}

// lead makes s the leader for f, or returns the flight under way.
func (fl *flights) lead(f field, s *session, partial bool) (*flight, bool) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if old, ok := fl.m[f]; ok {
		return old, false
	}
	if fl.m == nil {
		fl.m = map[field]*flight{}
	}
	n := &flight{leader: s, partial: partial, done: make(chan struct{})}
	fl.m[f] = n
	return n, true
}

// land ends the flight of f if s leads it.
func (fl *flights) land(f field, s *session) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if x, ok := fl.m[f]; ok && x.leader == s {
		delete(fl.m, f)
		close(x.done)
	}
}

// leave ends all flights that s leads.
func (fl *flights) leave(s *session) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for f, x := range fl.m {
		if x.leader == s {
			delete(fl.m, f)
			close(x.done)
		}
	}
}

// leads reports whether s leads the flight of f.
func (fl *flights) leads(f field, s *session) bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	x, ok := fl.m[f]
	return ok && x.leader == s
}
