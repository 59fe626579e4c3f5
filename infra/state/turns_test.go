package state

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// An owner's values go one by one and leave room for another's. Whoever leaves or waits too long has no turn, and none is lost.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTurns()
		take := func(owner string) func() {
			t.Helper()
			end, err := q.take(t.Context(), owner)
			if err != nil {
				t.Fatal(owner, err)
			}
			return end
		}
		ann := take("ann")
		began := time.Now()
		if _, err := q.take(t.Context(), "ann"); !errors.Is(err, ErrNoTurn) || time.Since(began) != turnWait {
			t.Error("ann's second at once:", err, time.Since(began))
		}
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if _, err := q.take(ctx, "ann"); !errors.Is(err, context.Canceled) {
			t.Error("a client that left:", err)
		}
		bob := take("bob")
		if _, err := q.take(t.Context(), "cat"); !errors.Is(err, ErrNoTurn) {
			t.Error("a third owner at once:", err)
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
		if len(q.owners) > 0 || len(q.all) > 0 {
			t.Error("left:", q.owners, len(q.all))
		}
	})
}
