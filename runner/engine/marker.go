package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"reveille/infra/filelock"
)

// A Marker marks all processes of a runner's engines by a variable in their environment. On Linux an engine dies with
// its runner, but the processes that it started do not. The next start of the runner finds them by the mark. A nil
// Marker marks nothing.
type Marker struct {
	file  *os.File // locked for the life of this process
	owned bool     // no other runner has locked the file
	mark  string   // NAME=value
}

// OpenMarker opens or creates the file at path in an existing folder. The mark consists of the file's content and its
// device and inode, so that a copy of the file is another mark. If another runner has locked the file, the mark is a
// new random one.
func OpenMarker(path string) (*Marker, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("mark of engine processes: %w", err)
	}
	m := &Marker{file: f}
	if m.owned, err = filelock.Try(f); err != nil {
		return nil, fmt.Errorf("mark of engine processes: %w", err)
	}
	id := make([]byte, 32)
	if _, err := io.ReadFull(f, id); err != nil {
		id = []byte(randomHex(16))
		if _, err := f.WriteAt(id, 0); err != nil {
			return nil, fmt.Errorf("mark of engine processes: %w", err)
		}
	}
	if !m.owned {
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

// KillLeftovers kills the remaining processes of an earlier runner's engines; it finds none except on Linux. It returns
// the pids that it killed, and an error if some are still alive when ctx ends. Call it before the first [Start].
func (m *Marker) KillLeftovers(ctx context.Context) (killed []int, err error) {
	if !m.owned {
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
