package state_test

import (
	"fmt"
	"testing"
	"time"

	"reveille/infra/state"
)

// What hosts have saved is bounded in number and in time, and what this pool's runners did not write counts as none.
func TestConversations(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		read := func(model string) map[string]state.Conversations {
			t.Helper()
			all, err := s.Conversations(ctx, model)
			must(t, err)
			return all
		}
		equal(t, "none", len(read("m")), 0)
		good := state.Conversations{Count: 2, Tokens: 3000, Bytes: 1 << 30, SavedMS: time.Now().UnixMilli()}
		must(t, s.PutConversations(ctx, "m", "h1", good))
		must(t, s.PutConversations(ctx, "m", "h2", good))
		equal(t, "hosts", len(read("m")), 2)
		equal(t, "written", read("m")["h1"], good)
		if left, err := b.rdb.PTTL(ctx, prefix+"conv:m").Result(); err != nil || left <= 0 || left > 24*time.Hour {
			t.Error("it stays", left, err)
		}
		must(t, b.rdb.HSet(ctx, prefix+"conv:m", "h3", "no JSON").Err())
		equal(t, "others beside nonsense", len(read("m")), 2)
		old := good
		old.SavedMS -= 24 * 3600 * 1000
		must(t, s.PutConversations(ctx, "n", "h1", old))
		equal(t, "a day old", len(read("n")), 0)
		for i := range 200 {
			must(t, s.PutConversations(ctx, "m", fmt.Sprint("n", i), good))
		}
		if n := len(read("m")); n == 0 || n > 64 {
			t.Error("hosts of a model:", n)
		}
		equal(t, "the last host", read("m")["n199"], good)
		for i := range 1001 {
			must(t, s.PutConversations(ctx, fmt.Sprint("m", i), "h", good))
		}
		equal(t, "a model too many", len(read("m")), 0)
		count, err := b.rdb.ZCard(ctx, prefix+"convs").Result()
		must(t, err)
		equal(t, "models", count, 1000)
	})
}

// The time of a forget rises whatever the clock says, and it takes away what hosts were said to have.
func TestForgetConversations(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		forget := func(model string) uint64 {
			t.Helper()
			at, err := s.ForgetConversations(ctx, model)
			must(t, err)
			all, err := s.Forgotten(ctx)
			must(t, err)
			equal(t, "recorded", all[model], at)
			return at
		}
		has := state.Conversations{Count: 2, Tokens: 3000, Bytes: 1 << 30, SavedMS: time.Now().UnixMilli()}
		for _, model := range []string{"a", "b"} {
			must(t, s.PutConversations(ctx, model, "h", has))
		}
		told := func(model string) int {
			list, err := s.Conversations(ctx, model)
			must(t, err)
			return len(list)
		}
		first := forget("a")
		equal(t, "of a", told("a"), 0)
		equal(t, "of b", told("b"), 1)
		ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
		must(t, s.Set(ctx, state.Forgets, "a", fmt.Sprint(ahead)))
		equal(t, "after a clock that was ahead", forget("a"), ahead+1)
		if all := forget(""); all <= first {
			t.Error("all models:", all, first)
		}
		equal(t, "of b", told("b"), 0)
		must(t, s.Set(ctx, state.Forgets, "", fmt.Sprint(ahead)))
		equal(t, "a model after all", forget("a"), ahead+2)
	})
}
