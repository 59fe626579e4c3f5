package conversations

import (
	"path/filepath"
	"testing"
)

// turns runs an engine for one request, which makes slot 0 hold tokens, computes some of them, and returns how many
// came from a restored conversation.
func turns(t *testing.T, s *Store, p Process, tokens []uint32, computed int, others bool) (n int) {
	t.Helper()
	l := newLlama(t, 1)
	l.done = map[int]int{0: computed}
	run(t, s, p, l, nil, func(e *Engine) {
		e.Begin()
		if others {
			e.Begin()
			e.End()
		}
		l.holding(0, tokens, 1)(e)
		n = e.Reused(t.Context())
		if again := e.Reused(t.Context()); again != 0 {
			t.Errorf("a later response reused %d restored tokens", again)
		}
		e.End()
	})
	return n
}

// A response reports what it reused of a restored conversation.
func TestReusedCountsRestoredTokens(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	turn := func(tokens []uint32, computed, want int) {
		t.Helper()
		if n := turns(t, s, p, tokens, computed, false); n != want {
			t.Errorf("%d tokens were reused, want %d", n, want)
		}
	}
	turn(count(1, 100), 100, 0) // the first turn: nothing is restored
	turn(count(1, 150), 50, 100)
	turn(count(1, 200), 200, 0)
	turn(count(2, 300), 300, 0) // a new chat
	if n := turns(t, s, p, count(2, 350), 50, true); n != 0 {
		t.Errorf("with two concurrent requests, %d tokens are reported as reused", n)
	}
}

// Saved conversations are listed by model, and forgotten by model or all together.
func TestConversationsAreListedAndForgottenByModel(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 1<<20)
	for i, model := range []string{"a", "b/c:d"} {
		p := process(t, filepath.Join(t.TempDir(), "m.gguf"))
		p.Model = model
		turns(t, s, p, count(1, 100+i), 100, false)
		turns(t, s, p, count(2, 200+i), 200, false)
	}
	s.Close()
	s = open(t, dir, 1<<20)
	list := s.Kept()
	if len(list) != 2 || list[0].Model != "a" || list[1].Model != "b/c:d" || list[1].Conversations != 2 || list[1].Tokens != 302 || list[0].Bytes+list[1].Bytes != s.total ||
		list[0].Newest > list[0].Oldest {
		t.Errorf("kept is %+v", list)
	}
	at := now()
	if f := s.Forget("b/c:d", at); f.Wait() != nil || f.Conversations != 2 || len(s.Kept()) != 1 || len(names(t, dir)) != 2 {
		t.Errorf("forgot %d, left %+v", f.Conversations, s.Kept())
	}
	if f := s.Forget("b/c:d", at-1); f.Conversations != 2 {
		t.Errorf("the same again: forgot %d", f.Conversations)
	}
	if f := s.Forget("", now()); f.Wait() != nil || f.Conversations != 2 || len(s.Kept()) != 0 || len(names(t, dir)) != 0 || s.total != 0 {
		t.Errorf("forgot %d, left %+v", f.Conversations, s.Kept())
	}
}
