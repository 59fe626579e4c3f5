// Package fairqueue bounds how many requests run at one time. The others wait, and the next place goes to the tenant that
// has the fewest: a tenant that sends thousands of requests delays its own.
package fairqueue

import (
	"container/list"
	"context"
	"sync"
)

// Limited is an engine that gets a bounded number of requests at one time; a nil queue is no bound.
type Limited interface{ Slots() *Queue }

// Queue has a fixed number of places. Methods are safe for concurrent use.
type Queue struct {
	mu      sync.Mutex
	free    int // 0 while anyone waits
	tenants map[string]*tenant
	turns   list.List // of *tenant: those that wait, the next among equals first
}

// tenant is one that has a place or waits for one.
type tenant struct {
	name    string
	running int
	waiting list.List     // of chan struct{}, closed when the waiter has a place; in the order of arrival
	turn    *list.Element // in turns, nil while none waits
}

// New makes a queue with n places.
func New(n int) *Queue { return &Queue{free: n, tenants: map[string]*tenant{}} }

// TryAcquire takes a place for a tenant if one is free.
func (q *Queue) TryAcquire(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.free == 0 {
		return false
	}
	q.free--
	q.tenantLocked(name).running++
	return true
}

// Acquire takes a place for a tenant, waiting for its turn. The error is ctx's cause; no place is taken then.
func (q *Queue) Acquire(ctx context.Context, name string) error {
	if q.TryAcquire(name) {
		return nil
	}
	q.mu.Lock()
	t := q.tenantLocked(name)
	ready := make(chan struct{})
	at := t.waiting.PushBack(ready)
	if t.turn == nil {
		t.turn = q.turns.PushBack(t)
	}
	q.dispatchLocked() // a place may have become free since
	q.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-ready: // at the same moment
		q.releaseLocked(t)
	default:
		t.waiting.Remove(at)
		q.tidyLocked(t)
	}
	return context.Cause(ctx)
}

// Release gives a tenant's place back.
func (q *Queue) Release(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.releaseLocked(q.tenants[name])
}

func (q *Queue) releaseLocked(t *tenant) {
	q.free++
	q.dispatchLocked() // while the request that ended still counts for its tenant: the place goes to another if one waits
	t.running--
	q.tidyLocked(t)
}

// dispatchLocked gives free places to those that wait.
func (q *Queue) dispatchLocked() {
	for q.free > 0 && q.turns.Len() > 0 {
		next := q.turns.Front()
		for e := next.Next(); e != nil; e = e.Next() {
			if e.Value.(*tenant).running < next.Value.(*tenant).running {
				next = e
			}
		}
		t := next.Value.(*tenant)
		close(t.waiting.Remove(t.waiting.Front()).(chan struct{}))
		t.running++
		q.free--
		q.turns.MoveToBack(next)
		q.tidyLocked(t)
	}
}

func (q *Queue) tenantLocked(name string) *tenant {
	t := q.tenants[name]
	if t == nil {
		t = &tenant{name: name}
		q.tenants[name] = t
	}
	return t
}

// tidyLocked takes a tenant out of the turns when it waits no more, and forgets it when it has no place either.
func (q *Queue) tidyLocked(t *tenant) {
	if t.waiting.Len() > 0 {
		return
	}
	if t.turn != nil {
		q.turns.Remove(t.turn)
		t.turn = nil
	}
	if t.running == 0 {
		delete(q.tenants, t.name)
	}
}
