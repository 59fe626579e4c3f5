package conversations

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/infra/relay"
)

func now() uint64 { return uint64(time.Now().UnixMicro()) }

// What an engine held when its model's conversations were forgotten is not saved, whenever the forget came: before the
// save, while the engine writes, while the files are copied. What a later engine computes is saved, and outlives a
// restart of the runner that is asked again.
func TestForgottenConversationsAreNotSaved(t *testing.T) {
	dir := t.TempDir()
	s, p := open(t, dir, 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	none := func(what string) {
		t.Helper()
		for _, f := range s.forgettings {
			if err := f.Wait(); err != nil {
				t.Error(err)
			}
		}
		if left := names(t, dir); len(left) != 0 || s.total != 0 {
			t.Errorf("%s: %v stays, %d bytes", what, left, s.total)
		}
	}
	l := newLlama(t, 1)
	run(t, s, p, l, nil, func(e *Engine) {
		l.holding(0, count(1, 100), 1)(e)
		s.Forget("m", now())
	})
	none("before the save")

	l = newLlama(t, 2)
	l.saving = func() { s.Forget("m", now()) }
	run(t, s, p, l, nil, func(e *Engine) {
		l.holding(0, count(1, 100), 1)(e)
		l.holding(1, count(2, 100), 2)(e)
	})
	none("while the engine writes")

	e, err := s.Prepare(p)
	if err != nil {
		t.Fatal(err)
	}
	last := s.Forget("", now())
	text := stateOf(count(1, 100)...)
	name := filepath.Join(t.TempDir(), "save-0")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	file := savedFile{file: f, header: header{Bytes: uint64(len(text)), Tokens: 100, Model: nameOf("m"), Forgotten: e.forgotten}}
	if err := s.storeOne(file); !errors.Is(err, errForgotten) {
		t.Errorf("a file that was being copied: %v", err)
	}
	none("while it is copied")

	l = newLlama(t, 1)
	run(t, s, p, l, nil, l.holding(0, count(1, 100), 1))
	s.Close()
	s = open(t, dir, 1<<20)
	if f := s.Forget("", last.at); f.Conversations != 0 || len(names(t, dir)) != 1 {
		t.Errorf("after a restart %d newer conversations were forgotten", f.Conversations)
	}
	l = newLlama(t, 1)
	if got := run(t, s, p, l, nil, func(*Engine) {}); len(got[0]) != 100 {
		t.Errorf("%d tokens were restored", len(got[0]))
	}
}

// What was staged for an engine is not restored once it is forgotten.
func TestForgottenConversationsAreNotRestored(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	l := newLlama(t, 1)
	run(t, s, p, l, nil, l.holding(0, count(1, 100), 1))
	e, err := s.Prepare(p)
	if err != nil {
		t.Fatal(err)
	}
	l = newLlama(t, 1)
	client := relay.New(relay.Config{Addr: strings.TrimPrefix(l.URL, "http://")})
	defer client.Close()
	e.Stage(t.Context(), l.dir, 1)
	staged := <-e.staged
	if len(staged) != 1 {
		t.Fatalf("%d conversations are staged", len(staged))
	}
	e.staged <- staged
	s.Forget("m", now())
	e.Restore(t.Context(), client, "key", nil)
	if len(l.slots[0]) != 0 {
		t.Errorf("%d tokens were restored", len(l.slots[0]))
	}
}
