// Package fairqueue limits the number of concurrent requests. The others wait. The next permit goes to the highest
// priority that waits and, among its tenants, to the one that holds the fewest, so a tenant that sends thousands of
// requests delays only its own. Every eighth permit goes to the request that has waited longest, whatever its priority,
// so none waits forever.
package fairqueue

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"reveille/infra/rpc"
)

// Queue has a fixed number of permits, one for each request that runs. Methods are safe for concurrent use.
type Queue struct {
	mu      sync.Mutex
	free    int // 0 while a request waits
	tenants map[string]*tenant
	waiting [rpc.Priorities]list.List // of *lane with waiters; among tenants with equally many permits the first is next
	arrived uint64                    // requests that had to wait so far
	given   uint64                    // permits given to them
}

// oldestEvery is how often a permit goes to the request that has waited longest instead of to the highest priority.
const oldestEvery = 8

// tenant is a tenant that holds permits or waits for one.
type tenant struct {
	name    string
	running int
	lanes   [rpc.Priorities]lane
}

// lane has the waiting requests of a tenant with one priority.
type lane struct {
	tenant   *tenant
	priority rpc.Priority
	waiters  list.List     // of *waiter, in order of arrival
	element  *list.Element // in Queue.waiting, nil without waiters
}

// waiter is a request that waits for a permit.
type waiter struct {
	number uint64        // in order of arrival
	done   chan struct{} // closed when it has a permit, or err
	err    error
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
func (q *Queue) Acquire(ctx context.Context, name string, p rpc.Priority) error {
	if q.TryAcquire(name) {
		return nil
	}
	q.mu.Lock()
	l := &q.tenantLocked(name).lanes[p]
	q.arrived++
	w := &waiter{number: q.arrived, done: make(chan struct{})}
	at := l.waiters.PushBack(w)
	if l.element == nil {
		l.element = q.waiting[p].PushBack(l)
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
			q.releaseLocked(l.tenant)
		}
	default:
		l.waiters.Remove(at)
		q.cleanUpLocked(l.tenant)
	}
	return context.Cause(ctx)
}

// Release returns a tenant's permit.
func (q *Queue) Release(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.releaseLocked(q.tenants[name])
}

// SendBack ends the waits of up to n requests with ErrSentBack, those that would wait for longest: of the lowest
// priority, the last one of the tenant with the most waiters each time. It returns their number.
func (q *Queue) SendBack(n int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	sent := 0
	for p := int(rpc.Background); p >= 0; p-- {
		for ; sent < n && q.waiting[p].Len() > 0; sent++ {
			l := best(&q.waiting[p], func(a, b *lane) bool { return a.waiters.Len() > b.waiters.Len() })
			w := l.waiters.Remove(l.waiters.Back()).(*waiter)
			w.err = ErrSentBack
			close(w.done)
			q.cleanUpLocked(l.tenant)
		}
	}
	return sent
}

// best returns the first lane that no other precedes; nil if there is none.
func best(lanes *list.List, precedes func(a, b *lane) bool) (first *lane) {
	for e := lanes.Front(); e != nil; e = e.Next() {
		if l := e.Value.(*lane); first == nil || precedes(l, first) {
			first = l
		}
	}
	return first
}

func (q *Queue) releaseLocked(t *tenant) {
	q.free++
	q.dispatchLocked() // while the request that ended still counts for its tenant: the permit goes to another tenant if one waits
	t.running--
	q.cleanUpLocked(t)
}

// dispatchLocked gives free permits to waiters.
func (q *Queue) dispatchLocked() {
	for q.free > 0 {
		l := q.nextLocked()
		if l == nil {
			return
		}
		close(l.waiters.Remove(l.waiters.Front()).(*waiter).done)
		l.tenant.running++
		q.free--
		q.given++
		q.waiting[l.priority].MoveToBack(l.element)
		q.cleanUpLocked(l.tenant)
	}
}

// nextLocked returns the lane whose first waiter gets the next permit, nil if nothing waits.
func (q *Queue) nextLocked() (next *lane) {
	oldest := q.given%oldestEvery == oldestEvery-1
	for p := range q.waiting {
		l := best(&q.waiting[p], func(a, b *lane) bool {
			if oldest {
				return a.first() < b.first()
			}
			return a.tenant.running < b.tenant.running
		})
		if l != nil && (next == nil || oldest && l.first() < next.first()) {
			next = l
		}
	}
	return next
}

// first returns the number of the lane's first waiter.
func (l *lane) first() uint64 { return l.waiters.Front().Value.(*waiter).number }

func (q *Queue) tenantLocked(name string) *tenant {
	t := q.tenants[name]
	if t == nil {
		t = &tenant{name: name}
		for p := range t.lanes {
			t.lanes[p].tenant, t.lanes[p].priority = t, rpc.Priority(p)
		}
		q.tenants[name] = t
	}
	return t
}

// cleanUpLocked removes a tenant's lanes without waiters, and the tenant if it has no lane and holds no permit.
func (q *Queue) cleanUpLocked(t *tenant) {
	waits := false
	for p := range t.lanes {
		switch l := &t.lanes[p]; {
		case l.waiters.Len() > 0:
			waits = true
		case l.element != nil:
			q.waiting[p].Remove(l.element)
			l.element = nil
		}
	}
	if !waits && t.running == 0 {
		delete(q.tenants, t.name)
	}
}
