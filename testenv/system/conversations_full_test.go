package system

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// On a full disk the model is unloaded and loaded as ever, with the same responses: without what could not be saved,
// with what fits, and with everything once there is room again.
func TestConversationsOnAFullDisk(t *testing.T) {
	testenv.Engines(t)
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=256m,mode=700"); err != nil {
		t.Skip("a small disk needs root's rights to mount: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 8192, llamacpp_args: "-np 2 --swa-full"}}
  other: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 1024, llamacpp_args: "-np 1"}}
`
	s := testenv.Start(t, testenv.Spec{Models: models, StateDir: dir, Args: []string{"--conversations-bytes=1GiB"}})
	filler := filepath.Join(dir, "filler")
	// fill leaves so many bytes free.
	fill := func(left int64) {
		t.Helper()
		if err := os.Remove(filler); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		kit.Eventually(t, "the disk is filled", func() bool { // a file that is being saved may take the place first
			var fs syscall.Statfs_t
			if err := syscall.Statfs(dir, &fs); err != nil {
				t.Fatal(err)
			}
			err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(fs.Bavail)*fs.Bsize-left)
			if err != nil && err != syscall.ENOSPC {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	saved := func() (files []string, size int64) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(dir, "conversations-local", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				size += info.Size()
			}
		}
		return files, size
	}
	want := map[string]message{}
	for _, name := range []string{"Ada", "Bob"} {
		want[name] = say(t, s, "talker", about(name)).Choices[0].Message
	}
	swap := func(what string) (cached []int) {
		t.Helper()
		say(t, s, "other", message{"user", "Hello."})
		for _, name := range []string{"Ada", "Bob"} {
			a := say(t, s, "talker", about(name))
			if a.Choices[0].Message != want[name] {
				t.Errorf("%s: the response is %q, before it was %q", what, a.Choices[0].Message, want[name])
			}
			cached = append(cached, a.Timings.Cached)
		}
		files, _ := saved()
		for _, f := range files {
			if strings.Contains(f, "unfinished") {
				t.Errorf("%s: %s stays", what, f)
			}
		}
		return cached
	}
	if got := swap("with room"); min(got[0], got[1]) < 400 {
		t.Fatalf("with room %v tokens came from the cache", got)
	}
	_, size := saved()
	one := size / 2
	t.Logf("a conversation takes %d bytes", one)
	if out := forget(t, s, "all", "--api-key="+s.AdminKey()); out == "" {
		t.Error("it says nothing")
	}
	swap("once forgotten") // nothing is saved

	for what, left := range map[string]int64{"nothing free": 0, "less than one": one / 2, "room for the engine's file": one + one/2, "room for the engine's files": 2*one + one/2, "room for one": 3*one + one/2} {
		for _, f := range func() []string { f, _ := saved(); return f }() {
			if err := os.Truncate(f, 100); err != nil { // what was saved before does not help
				t.Fatal(err)
			}
		}
		fill(left)
		t.Logf("%s: %v tokens came from the cache", what, swap(what))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	swap("with room again")
	if got := swap("with room again, and once more"); min(got[0], got[1]) < 400 {
		t.Errorf("with room again %v tokens came from the cache", got)
	}
	kit.Eventually(t, "the runner counts what did not fit", func() bool {
		return strings.Contains(s.Log(), "conversation not stored") || strings.Contains(s.Log(), "conversation not saved")
	})
}
