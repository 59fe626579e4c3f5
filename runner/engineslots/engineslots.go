// Package engineslots keeps the conversations of API keys apart in an engine of llama-server, which reuses the
// beginning of whatever a slot computed last. A request gets a slot that holds nothing of another key; see
// infra/adr/0025-conversations.md.
package engineslots

import (
	"container/list"
	"context"
	"crypto/sha256"
	"sync"

	"github.com/zeebo/xxh3"
)

// Tenant stands for the requests that share conversations.
type Tenant [sha256.Size]byte

// TenantOf returns the tenant with a name.
func TenantOf(name string) Tenant { return sha256.Sum256([]byte(name)) }

// Any is the slot of a request for which the engine chooses.
const Any = -1

// Table knows whose conversation each slot of an engine holds. Methods are safe for concurrent use.
type Table struct {
	erase func(ctx context.Context, slot int) error

	mu      sync.Mutex
	slots   []slot
	now     int       // counts requests
	past    int       // counts Restored, downwards
	alone   bool      // a request with Any runs
	waiting list.List // of *waiter, in order of arrival
}

type slot struct {
	holder holder
	prompt Prompt
	used   int // Table.now of its last request
	busy   bool
}

// holder is whose conversation a slot holds.
type holder struct {
	tenant Tenant
	kind   kind
}

type kind uint8

const (
	nobody  kind = iota // the slot is empty
	known               // it holds one of tenant
	unknown             // it may hold one of anybody
)

type waiter struct {
	tenant Tenant
	prompt Prompt
	any    bool
	ready  chan struct{} // closed when slot is set
	slot   int
	erase  []int
}

// New returns the table of an engine with n empty slots. erase empties one, after its request if it has one.
func New(n int, erase func(ctx context.Context, slot int) error) *Table {
	return &Table{erase: erase, slots: make([]slot, n)}
}

// Acquire waits for a slot for a request of tenant, and erases what it holds of others. If the engine cannot be told
// which slot to use, `any`, it waits until no request of another tenant runs, erases all that is not tenant's, and
// returns Any; until its release no other request gets a slot. Every slot must be released once. If ctx ends first, or
// something cannot be erased, there is none to release and the error is ctx's cause or that of erase.
func (t *Table) Acquire(ctx context.Context, tenant Tenant, p Prompt, any bool) (int, error) {
	w := &waiter{tenant: tenant, prompt: p, any: any, ready: make(chan struct{})}
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
			t.slots[s].holder = holder{tenant, known}
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
		t.alone = false
	} else {
		t.slots[slot].busy = false
	}
	t.dispatchLocked()
}

// dispatchLocked serves waiters while the first can be.
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
	if t.alone {
		return false
	}
	mine := holder{w.tenant, known}
	if w.any {
		for i := range t.slots {
			if t.slots[i].busy && t.slots[i].holder != mine {
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
		t.alone, w.slot = true, Any
		return true
	}
	i := t.chooseLocked(mine, &w.prompt)
	if i < 0 {
		return false
	}
	s := &t.slots[i]
	w.takeLocked(s, i)
	t.now++
	s.prompt, s.used, s.busy = w.prompt, t.now, true
	w.slot = i
	return true
}

// takeLocked makes a waiter the holder of a slot, once it has erased what the slot holds of others.
func (w *waiter) takeLocked(s *slot, i int) {
	mine := holder{w.tenant, known}
	if s.holder.kind != nobody && s.holder != mine {
		w.erase = append(w.erase, i)
		mine = holder{kind: unknown}
	}
	s.holder = mine
}

// chooseLocked returns the idle slot that a prompt gets, or -1: the holder's own that begins most like it, else an
// empty one, else the one that was used longest ago.
func (t *Table) chooseLocked(mine holder, p *Prompt) int {
	best, common := -1, int64(0)
	for i := range t.slots {
		s := &t.slots[i]
		if s.busy || s.holder != mine {
			continue
		}
		if n := s.prompt.common(p); n > common {
			best, common = i, n
		}
	}
	if best >= 0 && common >= p.Length/10 {
		return best
	}
	best = -1
	for i := range t.slots {
		s := &t.slots[i]
		switch {
		case s.busy:
		case s.holder.kind == nobody && (best < 0 || t.slots[best].holder.kind != nobody):
			best = i
		case best < 0 || t.slots[best].holder.kind != nobody && s.used < t.slots[best].used:
			best = i
		}
	}
	return best
}

// Held returns whose conversation a slot holds and the prompt of its last request; false if that is not known.
func (t *Table) Held(slot int) (tenant Tenant, p Prompt, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slot < 0 || slot >= len(t.slots) || t.slots[slot].holder.kind != known {
		return Tenant{}, Prompt{}, false
	}
	return t.slots[slot].holder.tenant, t.slots[slot].prompt, true
}

// Restored records that an idle slot was given a conversation of a tenant. The last used one comes first.
func (t *Table) Restored(i int, tenant Tenant, p Prompt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.past--
	t.slots[i] = slot{holder: holder{tenant, known}, prompt: p, used: t.past}
}

const (
	minStep  = 128 // bytes
	maxMarks = 64
)

// Prompt tells how far the beginnings of two request bodies are equal, without keeping them. Its size is fixed, so
// that it can be stored; a stored one need not be valid.
type Prompt struct {
	Length int64
	Step   int64
	Marks  [maxMarks]uint64 // hashes of the first Step, 2*Step, … bytes
}

// PromptOf reads a body.
func PromptOf(body []byte) Prompt {
	p := Prompt{Length: int64(len(body)), Step: minStep}
	for p.Step*maxMarks < p.Length {
		p.Step *= 2
	}
	h := xxh3.New()
	for i := range p.Length / p.Step {
		_, _ = h.Write(body[i*p.Step : (i+1)*p.Step]) // never fails
		p.Marks[i] = h.Sum64()
	}
	return p
}

// mark returns the hash of the first n bytes, if there is one.
func (p *Prompt) mark(n int64) (hash uint64, ok bool) {
	if p.Step <= 0 || n <= 0 || n > p.Length || n%p.Step != 0 || n/p.Step > maxMarks {
		return 0, false
	}
	return p.Marks[n/p.Step-1], true
}

// common returns how many bytes two prompts begin with alike, as far as the marks of both tell.
func (p *Prompt) common(q *Prompt) (n int64) {
	step := max(p.Step, q.Step)
	for {
		a, okA := p.mark(n + step)
		b, okB := q.mark(n + step)
		if !okA || !okB || a != b {
			return n
		}
		n += step
	}
}
