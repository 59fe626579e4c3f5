package conversations

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"reveille/runner/engineslots"
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
	run(t, s, p, newLlama(t, 1), nil, func(e *Engine) {
		answerChat(t, e, engineslots.Tenant{}, "Nothing.", asked("Ada"))
		s.Forget("m", now())
	})
	none("before the save")

	l := newLlama(t, 2)
	l.saving = func() { s.Forget("m", now()) }
	begin(t, s, p, l, "Ada", "Bob")
	none("while the engine writes")

	e, err := s.NewEngine(p)
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
	file := savedFile{file: f, header: header{Bytes: uint64(len(text)), Tokens: 100, Model: nameOf("m"), Forgotten: e.forgotten, Sum: sha256.Sum256(text[12:412])}}
	if err := s.storeOne(file); !errors.Is(err, errForgotten) {
		t.Errorf("a file that was being copied: %v", err)
	}
	none("while it is copied")

	begin(t, s, p, newLlama(t, 1), "Ada")
	s.Close()
	s = open(t, dir, 1<<20)
	if f := s.Forget("", last.at); f.Conversations != 0 || len(names(t, dir)) != 1 {
		t.Errorf("after a restart %d newer conversations were forgotten", f.Conversations)
	}
	if got := goOn(t, s, p, newLlama(t, 1), "Ada"); got[0] == 0 {
		t.Errorf("%d tokens were restored", got[0])
	}
}

// Saved conversations are listed by model, and forgotten by model or all together.
func TestConversationsAreListedAndForgottenByModel(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 1<<20)
	for _, model := range []string{"a", "b/c:d"} {
		p := process(t, filepath.Join(t.TempDir(), "m.gguf"))
		p.Model = model
		begin(t, s, p, newLlama(t, 1), "Ada", "Bob")
	}
	s.Close()
	s = open(t, dir, 1<<20)
	list := s.Kept()
	if len(list) != 2 || list[0].Model != "a" || list[1].Model != "b/c:d" || list[1].Conversations != 2 || list[1].Tokens < 400 ||
		list[0].Bytes+list[1].Bytes != s.total || list[0].Newest > list[0].Oldest {
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
