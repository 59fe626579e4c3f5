package state

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A tenant's values go one by one and leave room for another's. Whoever leaves or waits too long gets nothing, and nothing is left held.
func TestLargeValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newLargeValues()
		take := func(tenant string) func() {
			t.Helper()
			end, err := q.acquire(t.Context(), tenant)
			if err != nil {
				t.Fatal(tenant, err)
			}
			return end
		}
		ann := take("ann")
		began := time.Now()
		if _, err := q.acquire(t.Context(), "ann"); !errors.Is(err, ErrLargeBusy) || time.Since(began) != largeWait {
			t.Error("ann's second at once:", err, time.Since(began))
		}
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if _, err := q.acquire(ctx, "ann"); !errors.Is(err, context.Canceled) {
			t.Error("a client that left:", err)
		}
		bob := take("bob")
		if _, err := q.acquire(t.Context(), "cat"); !errors.Is(err, ErrLargeBusy) {
			t.Error("a third tenant at once:", err)
		}
		go func() {
			time.Sleep(time.Second)
			ann()
		}()
		began = time.Now()
		cat := take("cat")
		if time.Since(began) != time.Second {
			t.Error("cat waited", time.Since(began))
		}
		bob()
		take("ann")()
		cat()
		if len(q.tenants) > 0 || len(q.all) > 0 {
			t.Error("left:", q.tenants, len(q.all))
		}
	})
}
