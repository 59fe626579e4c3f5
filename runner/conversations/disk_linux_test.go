package conversations

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A full disk keeps what fits, leaves nothing behind of the rest, and takes the next conversation once there is room.
func TestFullDiskStoresNothing(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skip("a small disk needs root's rights to mount: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, p := open(t, dir, 1<<30), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	l := newLlama(t, 2)
	run(t, s, p, l, nil, func(*Engine) {
		l.slots[0], l.task[0] = count(1, 400_000), 7
		l.slots[1], l.task[1] = count(2, 200), 6
	})
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("on the full disk are %v, want one conversation", got)
	}
	var text bytes.Buffer
	s.cfg.Metrics.WritePrometheus(&text)
	if !bytes.Contains(text.Bytes(), []byte(`refused_total{reason="not_stored"} 1`)) {
		t.Errorf("the metrics are %s", text.Bytes())
	}
	l = newLlama(t, 2)
	got := run(t, s, p, l, nil, l.holding(0, count(3, 300), 8))
	if len(got[0]) != 200 {
		t.Errorf("%d tokens were restored, want those of the conversation that fit", len(got[0]))
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("then there are %v", got)
	}
}

// Listing the conversations and starting a load do not wait for the disk, neither while a load reads a conversation nor
// while a later state of it is saved.
func TestSlowDiskDoesNotBlockCallers(t *testing.T) {
	dir := t.TempDir()
	s, p := open(t, dir, 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	l := newLlama(t, 1)
	run(t, s, p, l, nil, l.holding(0, count(1, 100), 1))
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
	e, err := s.Prepare(p)
	if err != nil {
		t.Fatal(err)
	}
	e.Stage(t.Context(), t.TempDir(), 1)
	<-e.identified
	answers("a read")
	writer(0) // waits for the reader, which then finds nothing
	<-e.staged

	f, err := os.CreateTemp(t.TempDir(), "save")
	if err != nil {
		t.Fatal(err)
	}
	text := stateOf(count(1, 150)...)
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
	s.storeAll(e.id, "m", []savedFile{{file: f, header: header{Identity: e.id, Bytes: uint64(len(text)), Tokens: 150, Model: nameOf("m")}}})
	time.Sleep(100 * time.Millisecond) // so that it is at work
	answers("a save")
	s.await(t.Context(), e.id)
	if left := names(t, dir); len(left) != 1 || left[0] == name {
		t.Errorf("%v is kept, want the later state alone", left)
	}
}
