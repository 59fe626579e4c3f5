package mmcache

import "sync"

// encodings records which media this host is encoding and which session leads each, so that others wait for the result.
// It is safe for concurrent use.
//
// A session never waits while it leads, so waits cannot form a cycle. A partial encoding gives only some of a medium's
// chunks. No session waits for it: it ends only with a later encoding, perhaps by the very engine thread that would wait.
type encodings struct {
	mu sync.Mutex
	m  map[Ident]*encoding
}

type encoding struct {
	by      *session
	partial bool
	done    chan struct{} // closed when the encoding is removed from the map
}

// begin records that s leads the encoding of id and returns true, or returns the encoding by another session and false.
func (e *encodings) begin(id Ident, s *session, partial bool) (*encoding, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if other, ok := e.m[id]; ok {
		return other, false
	}
	if e.m == nil {
		e.m = map[Ident]*encoding{}
	}
	enc := &encoding{by: s, partial: partial, done: make(chan struct{})}
	e.m[id] = enc
	return enc, true
}

// end ends the encoding of id if it is by s.
func (e *encodings) end(id Ident, s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if enc, ok := e.m[id]; ok && enc.by == s {
		delete(e.m, id)
		close(enc.done)
	}
}

// endAll ends all encodings by s.
func (e *encodings) endAll(s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, enc := range e.m {
		if enc.by == s {
			delete(e.m, id)
			close(enc.done)
		}
	}
}

// isLedBy reports whether s leads the encoding of id.
func (e *encodings) isLedBy(id Ident, s *session) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	enc, ok := e.m[id]
	return ok && enc.by == s
}
