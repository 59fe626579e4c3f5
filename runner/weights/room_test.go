package weights_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/runner/weights"
)

// keeps reports which of some files of o/r are in the cache.
func (b *bench) keeps(names ...string) string {
	var out []string
	for _, n := range names {
		if _, there := b.cache.Path(place("hf://o/r/" + n)); there {
			out = append(out, n)
		}
	}
	return strings.Join(out, " ")
}

func (b *bench) puts(size int, names ...string) {
	for i, n := range names {
		b.hub.Put("o/r", n, noise(uint64(100+i), size))
	}
}

// What was used longest ago makes room, also after a restart; what an engine holds never does.
func TestLeastRecentlyUsedEntriesAreRemoved(t *testing.T) {
	b := start(t, func(c *weights.Config) { c.Bytes = 35_000 })
	b.puts(10_000, "a", "b", "c", "d", "e", "f")
	pull := func(name string) { b.Helper(); b.must(b.cache.Pull(t.Context(), place("hf://o/r/"+name))) }
	hold := func(name string) *weights.Hold {
		b.Helper()
		h, err := b.cache.Hold(t.Context(), place("hf://o/r/"+name))
		b.must(err)
		return h
	}
	expect := func(want string) {
		b.Helper()
		if got := b.keeps("a", "b", "c", "d", "e", "f"); got != want {
			t.Errorf("%q are there, want %q", got, want)
		}
	}
	pull("a")
	pull("b")
	pull("c")
	hold("a").Release()
	pull("d")
	expect("a c d")

	b.cache.Close()
	b.open()
	pull("e")
	expect("a d e")

	a, d, e := hold("a"), hold("d"), hold("e")
	if err := b.fails("hf://o/r/f", weights.ErrFull); err.Note != "needs 9.8 KiB, only 4.9 KiB free" {
		t.Error(err.Note)
	}
	expect("a d e")
	d.Release()
	pull("f")
	expect("a e f")
	a.Release()
	e.Release()
	b.puts(40_000, "huge")
	if err := b.fails("hf://o/r/huge", weights.ErrFull); err.Note != "needs 39.1 KiB, only 34.2 KiB free" {
		t.Error(err.Note)
	}
	expect("a e f") // none went in vain

	b.must(os.MkdirAll(filepath.Join(b.cfg.Dir, ".removed", "left"), 0o700)) // of a removal that failed
	pull("b")
	expect("a b e")
}

// What a load has just found there, and has not held yet, is not taken away for another.
func TestRecentlyWantedEntriesAreKept(t *testing.T) {
	b := start(t, func(c *weights.Config) { c.Bytes, c.Wanted = 15_000, time.Hour })
	b.puts(10_000, "a", "b")
	b.must(b.cache.Pull(t.Context(), place("hf://o/r/a")))
	if !b.cache.Has(place("hf://o/r/a")) || b.cache.Has(place("hf://o/r/b")) {
		t.Error("a is there, b is not")
	}
	b.fails("hf://o/r/b", weights.ErrFull)
	b.cache.Close()
	b.cfg.Wanted = time.Millisecond
	b.open()
	b.cache.Has(place("hf://o/r/a"))
	time.Sleep(2 * time.Millisecond)
	b.must(b.cache.Pull(t.Context(), place("hf://o/r/b")))
	if got := b.keeps("a", "b"); got != "b" {
		t.Error(got)
	}
}

// Room is promised once: two pulls at a time that fit one by one only do not both start.
func TestPullReservesItsSpace(t *testing.T) {
	b := start(t, func(c *weights.Config) { c.Bytes = 35_000 })
	b.puts(20_000, "a", "b")
	b.hub.Shut()
	first := b.later(t.Context(), "hf://o/r/a")
	b.hub.AwaitReads(1)
	b.fails("hf://o/r/b", weights.ErrFull)
	b.hub.Open()
	b.must(<-first)
	b.must(b.cache.Pull(t.Context(), place("hf://o/r/b")))
	if got := b.keeps("a", "b"); got != "b" {
		t.Error(got)
	}
}

// A disk without room is noticed before the first byte, and costs nothing that is there.
func TestFullDiskRemovesNothing(t *testing.T) {
	b := start(t, func(c *weights.Config) { c.Margin = 1 << 60 })
	b.puts(10_000, "a")
	e := b.fails("hf://o/r/a", weights.ErrFull)
	if e.Note != "needs 9.8 KiB, only 0 B free" || len(b.hub.Reads()) != 0 || len(b.left()) != 0 {
		t.Errorf("%s; %d reads; left %v", e.Note, len(b.hub.Reads()), b.left())
	}
}

// Files that are not as they were pulled are not used.
func TestDamagedEntryIsPulledAgain(t *testing.T) {
	b := start(t)
	content := noise(20, 10_000)
	b.hub.Put("o/r", "m.gguf", content)
	at := "hf://o/r/m.gguf"
	b.holds(at, content)
	path, _ := b.cache.Path(place(at))
	for name, damage := range map[string]func(){
		"cut":     func() { b.must(os.Truncate(path, 10)) },
		"removed": func() { b.must(os.Remove(path)) },
		"without a manifest": func() {
			b.cache.Close()
			b.must(os.WriteFile(filepath.Join(filepath.Dir(path), ".weights.json"), []byte("{"), 0o600))
			b.open()
		},
	} {
		damage()
		if _, there := b.cache.Path(place(at)); there {
			t.Errorf("%s: counts as there", name)
		}
		b.holds(at, content)
		if left := b.left(); len(left) != 2 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

// What is not the cache's in its folder stays.
func TestForeignFoldersAreKept(t *testing.T) {
	b := start(t)
	b.cache.Close()
	mine := filepath.Join(b.cfg.Dir, "mine", "model.gguf")
	b.must(errors.Join(os.Mkdir(filepath.Dir(mine), 0o755), os.WriteFile(mine, []byte("x"), 0o600)))
	b.cfg.Bytes = 15_000
	b.open()
	b.puts(10_000, "a", "b")
	b.must(b.cache.Pull(t.Context(), place("hf://o/r/a")))
	b.must(b.cache.Pull(t.Context(), place("hf://o/r/b")))
	if _, err := os.Stat(mine); err != nil || b.keeps("a", "b") != "b" {
		t.Error(err, b.keeps("a", "b"))
	}
}
