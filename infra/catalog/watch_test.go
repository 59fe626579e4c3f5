package catalog

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/testenv/kit"
)

// watching is a watcher under test, with its callbacks as channels.
type watching struct {
	*Watcher
	t       *testing.T
	path    string
	changes chan []string // ids of the models
	errs    chan error
}

func watch(t *testing.T, interval time.Duration, text string) *watching {
	t.Helper()
	x := &watching{t: t, path: filepath.Join(t.TempDir(), "models.yaml"), changes: make(chan []string, 10), errs: make(chan error, 10)}
	x.write(text)
	current, _, err := Load(x.path)
	if err != nil {
		t.Fatal(err)
	}
	x.Watcher = NewWatcher(x.path, interval, current,
		func(c *Catalog, _ Problems) { x.changes <- slices.Sorted(maps.Keys(c.index.byID)) }, func(err error) { x.errs <- err })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); x.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		select {
		case c := <-x.changes:
			t.Errorf("one change too many: %+v", c)
		case err := <-x.errs:
			t.Errorf("one error too many: %v", err)
		default:
		}
	})
	return x
}

// write replaces the file atomically, so that no half-written text is seen.
func (x *watching) write(text string) {
	x.t.Helper()
	next := x.path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		x.t.Fatal(err)
	}
	if err := os.Rename(next, x.path); err != nil {
		x.t.Fatal(err)
	}
}

func (x *watching) change() []string {
	x.t.Helper()
	select {
	case c := <-x.changes:
		return c
	case err := <-x.errs:
		x.t.Fatalf("error %v instead of a change", err)
	case <-time.After(kit.Patience):
		x.t.Fatal("no change seen")
	}
	panic("not reached")
}

func (x *watching) err() error {
	x.t.Helper()
	select {
	case err := <-x.errs:
		return err
	case c := <-x.changes:
		x.t.Fatalf("change %+v instead of an error", c)
	case <-time.After(kit.Patience):
		x.t.Fatal("no error seen")
	}
	panic("not reached")
}

const (
	oneModel  = "models:\n  a: {type: llm, recipe: standin, device: cpu}\n"
	twoModels = oneModel + "  b: {type: llm, recipe: standin, device: cpu}\n"
)

func TestWatcherPolls(t *testing.T) {
	x := watch(t, time.Millisecond, oneModel)
	x.write(twoModels)
	if c := x.change(); !slices.Equal(c, []string{"a", "b"}) {
		t.Errorf("added: %q", c)
	}

	// A wrong file is reported once, and the last good catalog stays in force.
	x.write(strings.Replace(twoModels, "llm", "lm", 1))
	var problems Problems
	if err := x.err(); !errors.As(err, &problems) || problems[0].Line != 2 {
		t.Errorf("wrong file: %v", err)
	}
	if err := os.Remove(x.path); err != nil {
		t.Fatal(err)
	}
	if err := x.err(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	x.write(oneModel)
	if c := x.change(); !slices.Equal(c, []string{"a"}) {
		t.Errorf("removed: %q", c)
	}

	// Another text with the same meaning is no change.
	x.write("# a comment\n" + oneModel)
	x.write(twoModels)
	if c := x.change(); !slices.Equal(c, []string{"a", "b"}) {
		t.Errorf("added again: %q", c)
	}
}

func TestWatcherReloads(t *testing.T) {
	x := watch(t, time.Hour, oneModel)
	x.Reload()
	if c := x.change(); !slices.Equal(c, []string{"a"}) {
		t.Errorf("nothing changed, but %q", c)
	}
	x.write("models: [")
	x.Reload()
	first := x.err()
	x.Reload()
	if again := x.err(); again.Error() != first.Error() {
		t.Errorf("%v, then %v", first, again)
	}
	x.write(twoModels)
	x.Reload()
	if c := x.change(); !slices.Equal(c, []string{"a", "b"}) {
		t.Errorf("added: %q", c)
	}
}

// TestReloadsAreOne: requests before Run looks are one, and none waits.
func TestReloadsAreOne(t *testing.T) {
	w := NewWatcher("nowhere", 0, nil, nil, nil)
	for range 100 {
		w.Reload()
	}
	if n := len(w.reload); n != 1 {
		t.Errorf("%d requests wait", n)
	}
}
