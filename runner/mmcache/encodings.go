package mmcache

import "sync"

// encodings records which media this host is encoding, so that other sessions wait for the result. It is safe for
// concurrent use.
//
// A session never waits while it is encoding, so waits cannot form a cycle. No session waits for a partial encoding,
// which ends only with a later encode, perhaps one on the waiter's own thread.
type encodings struct {
	mu sync.Mutex
	m  map[field]*encoding
}

type encoding struct {
	by      *session
	partial bool
	done    chan struct{} // closed by whoever removes the encoding from the map
}

// begin records that s encodes f and returns true, or returns the encoding by another session and false.
func (n *encodings) begin(f field, s *session, partial bool) (*encoding, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if other, ok := n.m[f]; ok {
		return other, false
	}
	if n.m == nil {
		n.m = map[field]*encoding{}
	}
	e := &encoding{by: s, partial: partial, done: make(chan struct{})}
	n.m[f] = e
	return e, true
}

// end ends the encoding of f if it is by s.
func (n *encodings) end(f field, s *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e, ok := n.m[f]; ok && e.by == s {
		delete(n.m, f)
		close(e.done)
	}
}

// endAll ends all encodings by s.
func (n *encodings) endAll(s *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for f, e := range n.m {
		if e.by == s {
			delete(n.m, f)
			close(e.done)
		}
	}
}

// has reports whether s encodes f.
func (n *encodings) has(f field, s *session) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.m[f]
	return ok && e.by == s
}
