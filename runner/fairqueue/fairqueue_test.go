package fairqueue

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"reveille/infra/rpc"
)

// priorityOf makes upper-case tenants high, and those after "m" run in the background.
func priorityOf(tenant rune) rpc.Priority {
	switch {
	case tenant < 'a':
		return rpc.High
	case tenant > 'm':
		return rpc.Background
	}
	return rpc.Normal
}

// trace has requests arrive one after the other while all permits are taken, lets each end in turn, and returns the
// order in which they ran.
func trace(t *testing.T, permits int, running, arrivals string) string {
	var order strings.Builder
	synctest.Test(t, func(t *testing.T) {
		q := New(permits)
		for _, name := range running {
			if !q.TryAcquire(string(name)) {
				t.Fatal("no free permit")
			}
		}
		var mu sync.Mutex
		var ran []string
		for _, name := range arrivals {
			go func() {
				if q.Acquire(t.Context(), string(name), priorityOf(name)) == nil {
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, string(name))
				}
			}()
			synctest.Wait()
		}
		for _, name := range running {
			q.Release(string(name))
			synctest.Wait()
		}
		for n := 0; n < len(ran); n++ {
			order.WriteString(ran[n])
			q.Release(ran[n])
			synctest.Wait()
		}
		if q.free != permits || len(q.tenants) != 0 || slices.ContainsFunc(q.waiting[:], func(l list.List) bool { return l.Len() > 0 }) {
			t.Errorf("%d permits free, %d tenants, %v waiting after all have ended", q.free, len(q.tenants), q.waiting)
		}
	})
	return order.String()
}

func TestTenantsTakeTurns(t *testing.T) {
	for name, c := range map[string]struct {
		permits                 int
		running, arrivals, want string
	}{
		"one tenant, in order of arrival":   {1, "a", "aaa", "aaa"},
		"a late tenant is the next":         {1, "a", "aaaab", "baaaa"},
		"a high one is the next":            {1, "a", "bcA", "Abc"},
		"a background one is the last":      {1, "a", "xabA", "Aabx"},
		"every eighth is the oldest":        {1, "a", "xaaaaaaaaa", "aaaaaaaxaa"},
		"turns":                             {1, "c", "aaaabbb", "abababa"},
		"no tenant at all":                  {1, "-", "--", "--"},
		"who has fewer permits is the next": {3, "aab", "aabb", "baab"},
		"more permits than tenants need":    {4, "aaaa", "aabc", "bcaa"},
	} {
		if got := trace(t, c.permits, c.running, c.arrivals); got != c.want {
			t.Errorf("%s: ran %s, want %s", name, got, c.want)
		}
	}
}

func TestCanceledWaiterTakesNoPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(1)
		if err := q.Acquire(t.Context(), "a", rpc.Normal); err != nil {
			t.Fatal(err)
		}
		gone := errors.New("gone")
		ctx, leave := context.WithCancelCause(t.Context())
		left, stayed := make(chan error, 1), make(chan error, 1)
		go func() { left <- q.Acquire(ctx, "b", rpc.Normal) }()
		synctest.Wait()
		go func() { stayed <- q.Acquire(t.Context(), "b", rpc.Normal) }()
		synctest.Wait()
		leave(gone)
		if err := <-left; !errors.Is(err, gone) {
			t.Errorf("who left got %v", err)
		}
		q.Release("a")
		if err := <-stayed; err != nil {
			t.Errorf("who stayed got %v", err)
		}
		q.Release("b")
		if !q.TryAcquire("c") || q.TryAcquire("c") {
			t.Error("a permit was lost or won")
		}
	})
}

// However requests come, wait and leave, no more than there are permits run, and no permit is lost.
func TestPermitsAreNeverExceeded(t *testing.T) {
	const permits = 3
	q := New(permits)
	var work sync.WaitGroup
	running := make(chan struct{}, permits)
	for n := range 200 {
		work.Go(func() {
			name := string(rune('a' + n%5))
			ctx, leave := context.WithCancel(t.Context())
			if n%3 == 0 {
				go leave()
			}
			defer leave()
			if q.Acquire(ctx, name, rpc.Normal) != nil {
				return
			}
			select {
			case running <- struct{}{}:
				<-running
			default:
				t.Error("more requests than permits")
			}
			q.Release(name)
		})
	}
	work.Wait()
	if q.free != permits || len(q.tenants) != 0 || slices.ContainsFunc(q.waiting[:], func(l list.List) bool { return l.Len() > 0 }) {
		t.Errorf("%d permits free, %d tenants, %v waiting after all have ended", q.free, len(q.tenants), q.waiting)
	}
}

// SendBack ends the waits of those that would wait for longest, and of no more than wait.
func TestSendBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(1)
		if n := q.SendBack(3); n != 0 || !q.TryAcquire("a") {
			t.Fatalf("%d sent back of none", n)
		}
		outcomes := make([]error, 5)
		var all sync.WaitGroup
		for i, name := range []string{"a", "b", "b", "b", "a"} {
			all.Go(func() {
				if outcomes[i] = q.Acquire(t.Context(), name, rpc.Normal); outcomes[i] == nil {
					q.Release(name)
				}
			})
			synctest.Wait()
		}
		if n := q.SendBack(2); n != 2 {
			t.Errorf("%d sent back, want 2", n)
		}
		q.Release("a")
		all.Wait()
		for i, err := range outcomes {
			back := i == 3 || i == 4 // b's last one, and then a's, of two tenants with two waiters each
			if back != errors.Is(err, ErrSentBack) || !back && err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}
		if n := q.SendBack(1); n != 0 || q.free != 1 || len(q.tenants) != 0 || slices.ContainsFunc(q.waiting[:], func(l list.List) bool { return l.Len() > 0 }) {
			t.Errorf("after all have ended: %d sent back, %d permits free, %d tenants, waiting: %v",
				n, q.free, len(q.tenants), q.waiting)
		}
	})
}
