package conversations

import (
	"context"
	"sync"
)

// maxLookups limits the requests whose slot is looked up. After that, unused conversations are no longer checked.
const maxLookups = 32

// reuse finds out whether requests use an engine's restored conversations. It stops once two requests run at the same
// time, because it cannot know which of them used the tokens. Its methods are safe for concurrent use.
type reuse struct {
	mu      sync.Mutex
	lookups int            // number of lookups since a conversation was restored
	unused  map[int]*entry // restored and not yet used, by slot
}

func (r *reuse) restored(slot int, c *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unused == nil {
		r.unused = map[int]*entry{}
	}
	r.unused[slot], r.lookups = c, 0
}

// Begin records that a request is about to be sent. Call End when its response is complete.
func (e *Engine) Begin() {
	if e == nil {
		return
	}
	if e.chats.begin() > 1 {
		e.reuse.mu.Lock()
		e.reuse.unused = nil
		e.reuse.mu.Unlock()
	}
}

// Reused returns how many prompt tokens of the request whose response the engine starts came from a restored
// conversation, 0 if none did or that is unknown. It queries the engine only while there are restored conversations
// that no request has used, and at most maxLookups times.
func (e *Engine) Reused(ctx context.Context) int {
	if e == nil {
		return 0
	}
	r := &e.reuse
	r.mu.Lock()
	hasUnused := len(r.unused) > 0
	if r.lookups++; hasUnused && r.lookups >= maxLookups {
		r.unused = nil
	}
	r.mu.Unlock()
	if !hasUnused {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	list, err := e.slotList(ctx)
	if err != nil {
		return 0
	}
	var last *slotState
	for i := range list {
		if s := &list[i]; s.Task != nil && (last == nil || *s.Task > *last.Task) {
			last = s
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last == nil || r.unused[last.ID] == nil {
		return 0
	}
	c := r.unused[last.ID]
	delete(r.unused, last.ID)
	return max(min(last.cached(), int(c.Tokens)), 0)
}

// cached returns how many tokens of its last request's prompt a slot did not compute.
func (s *slotState) cached() int { return s.prompted() - s.Computed }

// prompted returns how many tokens the prompt of its last request had. llama-server counts what it generated among the
// tokens, but for the last one.
func (s *slotState) prompted() int {
	n := s.Tokens
	for _, g := range s.Generated {
		n -= max(g.Decoded-1, 0)
	}
	return n
}
