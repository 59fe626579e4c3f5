package conversations

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/infra/relay"
	"reveille/runner/engineslots"
)

// A full disk keeps what fits, leaves nothing behind of the rest, and takes the next conversation once there is room.
func TestFullDiskStoresNothing(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Skip("a small disk needs root's rights to mount: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, p := open(t, dir, 1<<30), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	run(t, s, p, newLlama(t, 2), nil, func(e *Engine) {
		answerChat(t, e, engineslots.Tenant{}, "Nothing.", strings.Repeat("Long. ", 15_000))
		answerChat(t, e, engineslots.Tenant{}, "Nothing.", asked("Ada"))
	})
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("on the full disk are %v, want one conversation", got)
	}
	var text bytes.Buffer
	s.cfg.Metrics.WritePrometheus(&text)
	if !bytes.Contains(text.Bytes(), []byte(`refused_total{reason="not_stored"} 1`)) {
		t.Errorf("the metrics are %s", text.Bytes())
	}
	run(t, s, p, newLlama(t, 2), nil, func(e *Engine) {
		answerChat(t, e, engineslots.Tenant{}, "Nothing.", asked("Bob"))
	})
	if got := goOn(t, s, p, newLlama(t, 2), "Ada", "Bob"); got[0] == 0 || got[1] == 0 {
		t.Errorf("%v tokens were restored, want those of the conversations that fit", got)
	}
}

// Listing the conversations and starting a load do not wait for the disk, neither while a load reads a conversation nor
// while a later state of it is saved.
func TestSlowDiskDoesNotBlockCallers(t *testing.T) {
	dir := t.TempDir()
	s, p := open(t, dir, 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	begin(t, s, p, newLlama(t, 1), "Ada")
	name := names(t, dir)[0]
	if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil { // who opens it to read waits for a writer
		t.Fatal(err)
	}
	writer := func(flags int) {
		if f, err := os.OpenFile(name, os.O_WRONLY|flags, 0); err == nil {
			_ = f.Close()
		}
	}
	defer writer(syscall.O_NONBLOCK)
	answers := func(what string) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Kept()
			s.lastForget("m")
		}()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatal(what + " holds up others")
		}
	}
	e, err := s.NewEngine(p)
	if err != nil {
		t.Fatal(err)
	}
	<-e.identified
	l, read := newLlama(t, 1), make(chan struct{})
	client := relay.New(relay.Config{Addr: strings.TrimPrefix(l.URL, "http://")})
	defer client.Close()
	e.Serve(client, "key", t.TempDir(), 1, false)
	go func() {
		defer close(read)
		e.Begin(NewTurn("/chat/completions", chatBody(t, asked("Ada"), "Nothing.", "And then?")), engineslots.Tenant{}, 0).PrepareSlot(t.Context())
	}()
	answers("a read")
	writer(0) // waits for the reader, which then finds nothing
	<-read

	f, err := os.CreateTemp(t.TempDir(), "save")
	if err != nil {
		t.Fatal(err)
	}
	text := stateOf(count(1, 150)...)
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
	s.store(savedFile{file: f, header: header{Identity: e.id, Bytes: uint64(len(text)), Tokens: 150, Model: nameOf("m"), Sum: sha256.Sum256(text[12:612])},
		replaces: func(Key) bool { return true }})
	answers("a save")
	s.work.Wait()
	if left := names(t, dir); len(left) != 1 || left[0] == name {
		t.Errorf("%v is kept, want the later state alone", left)
	}
}
