// Package fairqueue limits the number of concurrent requests. The others wait, and the next permit goes to the tenant
// that holds the fewest, so a tenant that sends thousands of requests delays only its own.
package fairqueue

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// Limited is an engine with a limited number of concurrent requests. A nil queue means no limit.
type Limited interface{ Permits() *Queue }

// Queue has a fixed number of permits, one for each request that runs. Methods are safe for concurrent use.
type Queue struct {
	mu      sync.Mutex
	free    int // 0 while a request waits
	tenants map[string]*tenant
	waiting list.List // of *tenant with waiters; among tenants with equally many permits the first is next
}

// tenant is a tenant that holds permits or waits for one.
type tenant struct {
	name    string
	running int
	waiters list.List     // of *waiter, in order of arrival
	element *list.Element // in Queue.waiting, nil without waiters
}

// waiter is a request that waits for a permit.
type waiter struct {
	done chan struct{} // closed when it has a permit, or err
	err  error
}

// ErrSentBack is the error of a request whose wait SendBack ended.
var ErrSentBack = errors.New("the request is sent back, because another copy of the model has room")

// New returns a queue with n permits.
func New(n int) *Queue { return &Queue{free: n, tenants: map[string]*tenant{}} }

// TryAcquire takes a permit for a tenant if one is free.
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

// Acquire takes a permit for a tenant, waiting until one is free. When ctx ends first, it takes none and returns ctx's
// cause.
func (q *Queue) Acquire(ctx context.Context, name string) error {
	if q.TryAcquire(name) {
		return nil
	}
	q.mu.Lock()
	t := q.tenantLocked(name)
	w := &waiter{done: make(chan struct{})}
	at := t.waiters.PushBack(w)
	if t.element == nil {
		t.element = q.waiting.PushBack(t)
	}
	q.dispatchLocked() // a permit may have become free since
	q.mu.Unlock()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.done: // at the same moment
		if w.err == nil {
			q.releaseLocked(t)
		}
	default:
		t.waiters.Remove(at)
		q.cleanUpLocked(t)
	}
	return context.Cause(ctx)
}

// Release returns a tenant's permit.
func (q *Queue) Release(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.releaseLocked(q.tenants[name])
}

// SendBack ends the waits of up to n requests with ErrSentBack, those that would wait for longest: the last one of the
// tenant with the most waiters each time. It returns their number.
func (q *Queue) SendBack(n int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	sent := 0
	for ; sent < n && q.waiting.Len() > 0; sent++ {
		t := q.waiting.Front().Value.(*tenant)
		for e := q.waiting.Front(); e != nil; e = e.Next() {
			if o := e.Value.(*tenant); o.waiters.Len() > t.waiters.Len() {
				t = o
			}
		}
		w := t.waiters.Remove(t.waiters.Back()).(*waiter)
		w.err = ErrSentBack
		close(w.done)
		q.cleanUpLocked(t)
	}
	return sent
}

func (q *Queue) releaseLocked(t *tenant) {
	q.free++
	q.dispatchLocked() // while the request that ended still counts for its tenant: the permit goes to another tenant if one waits
	t.running--
	q.cleanUpLocked(t)
}

// dispatchLocked gives free permits to waiters.
func (q *Queue) dispatchLocked() {
	for q.free > 0 && q.waiting.Len() > 0 {
		next := q.waiting.Front()
		for e := next.Next(); e != nil; e = e.Next() {
			if e.Value.(*tenant).running < next.Value.(*tenant).running {
				next = e
			}
		}
		t := next.Value.(*tenant)
		close(t.waiters.Remove(t.waiters.Front()).(*waiter).done)
		t.running++
		q.free--
		q.waiting.MoveToBack(next)
		q.cleanUpLocked(t)
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

// cleanUpLocked removes a tenant from waiting if it has no waiters, and altogether if it holds no permit either.
func (q *Queue) cleanUpLocked(t *tenant) {
	if t.waiters.Len() > 0 {
		return
	}
	if t.element != nil {
		q.waiting.Remove(t.element)
		t.element = nil
	}
	if t.running == 0 {
		delete(q.tenants, t.name)
	}
}
