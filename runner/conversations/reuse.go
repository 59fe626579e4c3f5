package conversations

import (
	"context"
	"encoding/json"
	"sync"
)

// maxAsked is how many requests have their slot looked up, after which conversations that nobody used are left alone.
const maxAsked = 32

// reuse learns whether requests use the restored conversations of an engine. Once two run at the same time it stops,
// because it cannot tell which of them used the tokens. Its methods are safe for concurrent use.
type reuse struct {
	mu        sync.Mutex
	running   int
	asked     int            // how often the engine was asked since something was restored
	unusedYet map[int]*entry // restored and not yet used, by slot
}

func (r *reuse) restored(slot int, c *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unusedYet == nil {
		r.unusedYet = map[int]*entry{}
	}
	r.unusedYet[slot] = c
}

// Begin notes that a request is about to be sent. It must be followed by End when its answer is over.
func (e *Engine) Begin() {
	if e == nil {
		return
	}
	e.reuse.mu.Lock()
	defer e.reuse.mu.Unlock()
	if e.reuse.running++; e.reuse.running > 1 {
		e.reuse.unusedYet = nil
	}
}

// End notes that a request is over.
func (e *Engine) End() {
	if e == nil {
		return
	}
	e.reuse.mu.Lock()
	defer e.reuse.mu.Unlock()
	e.reuse.running--
}

// Reused returns how many tokens of the prompt of the request that the engine begins to answer came from a restored
// conversation, 0 if none did or it is not known. It asks the engine only while there are restored conversations
// that no request has used, and at most maxAsked times.
func (e *Engine) Reused(ctx context.Context) int {
	if e == nil {
		return 0
	}
	r := &e.reuse
	r.mu.Lock()
	any := len(r.unusedYet) > 0
	if r.asked++; any && r.asked >= maxAsked {
		r.unusedYet = nil
	}
	r.mu.Unlock()
	if !any {
		return 0
	}
	text, err := e.ask(ctx, "GET", "/slots", nil, askTimeout)
	var list []slotState
	if err != nil || json.Unmarshal(text, &list) != nil {
		return 0
	}
	var last *slotState
	for i := range list[:min(len(list), maxSlots)] {
		if s := &list[i]; s.Task != nil && (last == nil || *s.Task > *last.Task) {
			last = s
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last == nil || r.unusedYet[last.ID] == nil {
		return 0
	}
	c := r.unusedYet[last.ID]
	delete(r.unusedYet, last.ID)
	return max(min(last.cached(), int(c.Tokens)), 0)
}

// cached returns how many tokens of its last request's prompt a slot did not compute. llama-server counts what it
// generated among the tokens, but for the last one.
func (s *slotState) cached() int {
	n := s.Tokens - s.Computed
	for _, g := range s.Generated {
		n -= max(g.Decoded-1, 0)
	}
	return n
}
