package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"reveille/runner/filelock"
)

// A Marker marks all processes of a runner's engines by a variable in their environment. An engine dies with its
// runner, but not the processes that it started itself: the next start of the runner finds them by the mark. A nil
// Marker marks nothing.
type Marker struct {
	file *os.File // locked as long as this process lives
	mine bool     // no other runner has the file
	mark string   // NAME=value
}

// OpenMarker opens the file at path, which need not exist; its folder must. The mark is the file's content and its
// place on the disk: a copy of it belongs to another runner. If another runner has the file, the mark is a fresh one.
func OpenMarker(path string) (*Marker, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("mark of engine processes: %w", err)
	}
	m := &Marker{file: f}
	if m.mine, err = filelock.Try(f); err != nil {
		return nil, fmt.Errorf("mark of engine processes: %w", err)
	}
	id := make([]byte, 32)
	if _, err := io.ReadFull(f, id); err != nil {
		id = []byte(randomHex(16))
		if _, err := f.WriteAt(id, 0); err != nil {
			return nil, fmt.Errorf("mark of engine processes: %w", err)
		}
	}
	if !m.mine {
		id = []byte(randomHex(16))
	}
	m.mark = "REVEILLE_ENGINE=" + string(id)
	if info, err := f.Stat(); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			m.mark += fmt.Sprintf("-%d-%d", st.Dev, st.Ino)
		}
	}
	return m, nil
}

// KillLeftovers kills what is left of the engines of an earlier runner. It returns the pids that it killed, and an
// error if some are still alive when ctx ends. Call it before the first [Start].
func (m *Marker) KillLeftovers(ctx context.Context) (killed []int, err error) {
	if !m.mine {
		return nil, nil
	}
	for _, pid := range marked(m.mark) {
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed = append(killed, pid)
		}
	}
	for len(marked(m.mark)) > 0 {
		select {
		case <-ctx.Done():
			return killed, fmt.Errorf("%w: processes %v", ErrStuck, marked(m.mark))
		case <-time.After(firstPoll):
		}
	}
	return killed, nil
}
