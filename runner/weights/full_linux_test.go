package weights

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// A disk that fills up under a pull: the error says so, and nothing is left.
func TestDiskFillsUp(t *testing.T) {
	zeros := func(_, n int64) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(strings.Repeat("0", int(n)))), nil
	}
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for name, disk := range map[string]disk{
		"allocation": {freeBytes, func(*os.File, int64) error { return os.NewSyscallError("fallocate", unix.ENOSPC) }},
		"write": {freeBytes, func(f *os.File, _ int64) error { // from here on the file is one that no byte can be written to
			return unix.Dup3(int(full.Fd()), int(f.Fd()), 0)
		}},
		"unknown": {func(string) (int64, error) { return 0, unix.EIO }, allocate},
	} {
		c, err := Open(Config{Dir: t.TempDir(), Margin: 1, Sources: map[catalog.Scheme]Source{catalog.SchemeS3: source{1000, zeros}}})
		if err != nil {
			t.Fatal(err)
		}
		c.disk = disk
		err = c.Pull(t.Context(), Location{Checkpoint: catalog.ParseCheckpoint("s3://b/m")})
		if !errors.Is(err, ErrFull) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(c.dir + "/" + pullingName); len(left) > 0 {
			t.Errorf("%s: left %v, %v", name, left, err)
		}
		c.Close()
	}
}

// Without a bound of its own, a cache takes half of the free disk: a pull of three quarters is refused before a byte of it.
func TestHalfOfTheDiskByDefault(t *testing.T) {
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
