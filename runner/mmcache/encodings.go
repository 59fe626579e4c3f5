package mmcache

import "sync"

// encodings records which media this host is encoding, so that other sessions wait for the result. It is safe for
// concurrent use.
//
// A session never waits while it is encoding, so waits cannot form a cycle. No session waits for a partial encoding,
// which ends only with a later encode, perhaps one on the waiter's own thread.
type encodings struct {
	mu sync.Mutex
	m  map[Ident]*encoding
}

type encoding struct {
	by      *session
	partial bool
	done    chan struct{} // closed when the encoding is removed from the map
}

// start records that s encodes id and returns true, or returns the encoding by another session and false.
func (n *encodings) begin(id Ident, s *session, partial bool) (*encoding, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if other, ok := n.m[id]; ok {
		return other, false
	}
	if n.m == nil {
		n.m = map[Ident]*encoding{}
	}
	e := &encoding{by: s, partial: partial, done: make(chan struct{})}
	n.m[id] = e
	return e, true
}

// end ends the encoding of id if it is by s.
func (n *encodings) end(id Ident, s *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e, ok := n.m[id]; ok && e.by == s {
		delete(n.m, id)
		close(e.done)
	}
}

// endAll ends all encodings by s.
func (n *encodings) endAll(s *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, e := range n.m {
		if e.by == s {
			delete(n.m, id)
			close(e.done)
		}
	}
}

// has reports whether s encodes id.
func (n *encodings) has(id Ident, s *session) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.m[id]
	return ok && e.by == s
}
