package weights

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"

	"reveille/infra/catalog"
)

// source hands out one file of bytes in memory.
type source struct {
	size int64
	open func(from, n int64) (io.ReadCloser, error)
}

func (s source) Stat(context.Context, catalog.Checkpoint) (File, error) {
	return File{Name: "m", Size: s.size, Open: func(_ context.Context, from, n int64) (io.ReadCloser, error) { return s.open(from, n) }}, nil
}

func (s source) List(context.Context, catalog.Checkpoint) ([]File, error) { return nil, nil }

// A disk that is full or unknown: the error says so, and nothing is left.
func TestPullOnAFullDiskFails(t *testing.T) {
	unread := func(_, _ int64) (io.ReadCloser, error) { return nil, errors.New("read") }
	c, err := Open(Config{Dir: t.TempDir(), Margin: 1, Sources: map[catalog.Scheme]Source{catalog.SchemeS3: source{1000, unread}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.free = func(string) (int64, error) { return 0, syscall.EIO }
	err = c.Pull(t.Context(), Location{Checkpoint: catalog.ParseCheckpoint("s3://b/m")})
	if left, _ := os.ReadDir(c.dir + "/" + pullingName); !errors.Is(err, ErrFull) || len(left) > 0 {
		t.Errorf("%v; left %v", err, left)
	}
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if err := localError(&os.PathError{Err: full}); !errors.Is(err, ErrFull) {
			t.Errorf("%v: %v", full, err)
		}
	}
}

// Without a limit of its own, a cache takes half of the free disk: a pull of three quarters is refused before a byte
// of it.
func TestDefaultLimitIsHalfOfTheDisk(t *testing.T) {
	dir := t.TempDir()
	free, err := freeBytes(dir)
	if err != nil {
		t.Fatal(err)
	}
	unread := func(_, _ int64) (io.ReadCloser, error) { return nil, errors.New("read") }
	c, err := Open(Config{Dir: dir, Margin: 1, Sources: map[catalog.Scheme]Source{catalog.SchemeS3: source{free / 4 * 3, unread}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Pull(t.Context(), Location{Checkpoint: catalog.ParseCheckpoint("s3://b/m")}); !errors.Is(err, ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
}
