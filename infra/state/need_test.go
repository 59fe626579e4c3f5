package state_test

import (
	"fmt"
	"testing"

	"reveille/infra/state"
)

// Needs are bounded in number and in time, and one that this pool's runners did not write counts as none.
func TestNeeds(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		read := func(key string) state.Need {
			t.Helper()
			n, err := s.Need(ctx, key)
			must(t, err)
			return n
		}
		equal(t, "none", read("k"), state.Need{})
		n := state.Need{Bytes: 5 << 30, FailedMS: 17}
		must(t, s.PutNeed(ctx, "k", n))
		equal(t, "written", read("k"), n)
		if left, err := b.rdb.PTTL(ctx, prefix+"need:k").Result(); err != nil || left <= 0 {
			t.Error("it stays", left, err)
		}
		raw, err := b.rdb.Get(ctx, prefix+"need:k").Result()
		must(t, err)
		for name, forged := range map[string]string{
			"another key's": raw, "changed": raw[:len(raw)-1] + " }", "cut": raw[:20], "empty": "", "without a MAC": raw[65:],
		} {
			must(t, b.rdb.Set(ctx, prefix+"need:other", forged, 0).Err())
			equal(t, name, read("other"), state.Need{})
		}
		must(t, b.rdb.Del(ctx, prefix+"need:other").Err())
		must(t, b.rdb.HSet(ctx, prefix+"need:other", "a", "b").Err())
		equal(t, "of another type", read("other"), state.Need{})
		for _, bytes := range []int64{0, -1, 1<<50 + 1} {
			must(t, s.PutNeed(ctx, "k", state.Need{Bytes: bytes}))
			equal(t, fmt.Sprint(bytes), read("k"), state.Need{})
		}
		for i := range 1000 {
			must(t, s.PutNeed(ctx, fmt.Sprint("n", i), n))
		}
		equal(t, "the oldest of 1001", read("k"), state.Need{})
		equal(t, "the newest", read("n999"), n)
		count, err := b.rdb.ZCard(ctx, prefix+"needs").Result()
		must(t, err)
		equal(t, "counted", count, 1000)
	})
}
