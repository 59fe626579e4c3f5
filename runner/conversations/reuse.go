package conversations

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

const (
	strikes  = 2  // restored conversations that must go unused before a model's are no longer saved
	maxAsked = 32 // requests whose slot is looked up, after which conversations that nobody used are left alone
)

// reuse learns whether requests use the restored conversations of an engine. Once two run at the same time it stops,
// because it cannot tell which of them used the tokens. Its methods are safe for concurrent use.
type reuse struct {
	mu        sync.Mutex
	running   int
	asked     int            // how often the engine was asked since something was restored
	unusedYet map[int]*entry // restored and not yet used, by slot
	notUsed   map[int]*entry // that their slot's next request did not use
}

func (r *reuse) restored(slot int, c *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unusedYet == nil {
		r.unusedYet = map[int]*entry{}
	}
	r.unusedYet[slot] = c
}

// unused returns the conversation that was restored into a slot and that the slot's next request did not use.
func (r *reuse) unused(slot int) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notUsed[slot]
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
	tokens := min(last.cached(), int(c.Tokens))
	if tokens < minTokens {
		if r.notUsed == nil {
			r.notUsed = map[int]*entry{}
		}
		r.notUsed[last.ID] = c
		return max(tokens, 0)
	}
	e.store.used(e.plan)
	return tokens
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

// useless counts the restored conversations of a plan that went unused.
type useless struct {
	strikes int
	last    time.Time
}

// Useless reports whether conversations of a plan are not worth saving, because its engine reuses nothing of what is
// restored. It is forgotten when conversations expire, and when the runner ends.
func (s *Store) Useless(plan string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.useless[plan]
	if u.strikes < strikes {
		return false
	}
	if time.Since(u.last) >= s.cfg.TTL {
		delete(s.useless, plan)
		return false
	}
	return true
}

// used notes that a restored conversation of a plan was of use.
func (s *Store) used(plan string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.useless, plan)
}

// strikeLocked records that a restored conversation went unused.
func (s *Store) strikeLocked(plan string) {
	s.m.unused.Inc()
	s.useless[plan] = useless{s.useless[plan].strikes + 1, time.Now()}
	if s.useless[plan].strikes == strikes {
		s.cfg.Log.Warn("conversations are no longer saved: the engine reuses nothing of what is restored", "plan", plan)
	}
}
