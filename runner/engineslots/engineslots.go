// Package engineslots chooses the slots of llama-server, which reuses the start of the last prompt of a slot. A request
// gets that of its conversation and, if the table isolates API keys, never one that holds anything of another key. See infra/adr/0025-conversations.md.
package engineslots

import (
	"container/list"
	"context"
	"crypto/sha256"
	"sync"
)

// Tenant identifies the requests that share conversations.
type Tenant [sha256.Size]byte

// TenantOf returns the tenant with a name; without one, the zero Tenant.
func TenantOf(name string) Tenant {
	if name == "" {
		return Tenant{}
	}
	return sha256.Sum256([]byte(name))
}

// Any is the result for a request whose slot the engine chooses.
const Any = -1

// Table records whose conversation each slot of an engine holds. Methods are safe for concurrent use.
type Table struct {
	erase func(ctx context.Context, slot int) error

	mu        sync.Mutex
	slots     []slot
	requests  int       // that got a slot
	exclusive bool      // a request with Any runs
	waiting   list.List // of *waiter, in order of arrival
}

type slot struct {
	holder holder
	prompt Prompt
	used   int // Table.requests at its last request
	busy   bool
}

// holder is the owner of the conversation in a slot.
type holder struct {
	tenant Tenant
	kind   kind
}

type kind uint8

const (
	emptySlot     kind = iota // the slot is empty
	knownTenant               // it holds one of tenant's
	unknownTenant             // it can hold any tenant's
)

type waiter struct {
	tenant Tenant
	prompt Prompt
	any    bool
	ready  chan struct{} // closed when slot is set
	slot   int
	erase  []int
}

// New returns the table of an engine with n empty slots. erase empties a slot, after the slot's request if it has one;
// nil means that all requests are of one tenant.
func New(n int, erase func(ctx context.Context, slot int) error) *Table {
	return &Table{erase: erase, slots: make([]slot, n)}
}

// Isolates reports whether the requests are of several tenants.
func (t *Table) Isolates() bool { return t.erase != nil }

// Acquire waits for a slot for a request of tenant, and erases what the slot holds of other tenants. With engineChooses,
// for a request whose slot cannot be chosen, it returns Any: at once, or if the table isolates tenants once no request of
// another tenant runs and everything of other tenants is erased, and no other request gets a slot until its release.
// Every slot must be released once. On an error, ctx's cause or that of erase, there is no slot to release.
func (t *Table) Acquire(ctx context.Context, tenant Tenant, p Prompt, engineChooses bool) (int, error) {
	if engineChooses && !t.Isolates() {
		return Any, nil
	}
	w := &waiter{tenant: tenant, prompt: p, any: engineChooses, ready: make(chan struct{})}
	t.mu.Lock()
	at := t.waiting.PushBack(w)
	t.dispatchLocked()
	t.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
		t.mu.Lock()
		select {
		case <-w.ready: // at the same moment
			t.mu.Unlock()
			t.Release(w.slot)
		default:
			t.waiting.Remove(at)
			t.dispatchLocked()
			t.mu.Unlock()
		}
		return 0, context.Cause(ctx)
	}
	for _, s := range w.erase {
		if err := t.erase(ctx, s); err != nil {
			t.Release(w.slot)
			return 0, err
		}
	}
	if len(w.erase) > 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, s := range w.erase {
			t.slots[s].holder = holder{tenant, knownTenant}
		}
		t.dispatchLocked()
	}
	return w.slot, nil
}

// Release returns a slot from Acquire.
func (t *Table) Release(slot int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slot == Any {
		t.exclusive = false
	} else {
		t.slots[slot].busy = false
	}
	t.dispatchLocked()
}

// dispatchLocked serves waiters in order until one cannot be served.
func (t *Table) dispatchLocked() {
	for e := t.waiting.Front(); e != nil; e = t.waiting.Front() {
		w := e.Value.(*waiter)
		if !t.grantLocked(w) {
			return
		}
		t.waiting.Remove(e)
		close(w.ready)
	}
}

// grantLocked gives a waiter its slot if it can have one now.
func (t *Table) grantLocked(w *waiter) bool {
	if t.exclusive {
		return false
	}
	own := holder{w.tenant, knownTenant}
	if w.any {
		for i := range t.slots {
			if t.slots[i].busy && t.slots[i].holder != own {
				return false
			}
		}
		for i := range t.slots {
			s := &t.slots[i]
			if s.busy {
				continue
			}
			w.takeLocked(s, i)
			s.prompt = Prompt{}
		}
		t.exclusive, w.slot = true, Any
		return true
	}
	i := t.chooseLocked(own, &w.prompt)
	if i < 0 {
		return false
	}
	s := &t.slots[i]
	w.takeLocked(s, i)
	t.requests++
	s.prompt, s.used, s.busy = w.prompt, t.requests, true
	w.slot = i
	return true
}

// takeLocked gives a slot to a waiter, which must erase what the slot holds of other tenants.
func (w *waiter) takeLocked(s *slot, i int) {
	own := holder{w.tenant, knownTenant}
	if s.holder.kind != emptySlot && s.holder != own {
		w.erase = append(w.erase, i)
		own = holder{kind: unknownTenant}
	}
	s.holder = own
}

// chooseLocked returns the idle slot for a prompt, or -1: the tenant's slot with the most of the same conversation, else
// an empty one, else the least recently used.
func (t *Table) chooseLocked(own holder, p *Prompt) int {
	best, most := -1, p.Own
	for i := range t.slots {
		s := &t.slots[i]
		if s.busy || s.holder != own {
			continue
		}
		if n := s.prompt.common(p); n > most {
			best, most = i, n
		}
	}
	if best >= 0 {
		return best
	}
	for i := range t.slots {
		s := &t.slots[i]
		switch {
		case s.busy:
		case s.holder.kind == emptySlot && (best < 0 || t.slots[best].holder.kind != emptySlot):
			best = i
		case best < 0 || t.slots[best].holder.kind != emptySlot && s.used < t.slots[best].used:
			best = i
		}
	}
	return best
}

// Key identifies the start of a prompt.
type Key = [sha256.Size]byte

// Prompt is what a request wants computed.
type Prompt struct {
	Starts []Key // of its growing starts; two prompts that have one in common have all before it in common
	Own    int   // index of the first start that only requests of the same conversation have
}

// common returns how many starts two prompts have in common.
func (p *Prompt) common(q *Prompt) (n int) {
	for n < min(len(p.Starts), len(q.Starts)) && p.Starts[n] == q.Starts[n] {
		n++
	}
	return n
}
