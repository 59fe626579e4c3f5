package lambda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/renameio/v2"
)

// Copies keeps documents as files of a folder, for readers that know files alone. It is safe for concurrent use.
type Copies struct {
	dir   string
	every time.Duration

	mu      sync.Mutex // held over a Refresh
	sources map[string]func(context.Context) ([]byte, error)
	last    map[string][]byte
	at      time.Time // of the last Refresh that reached all sources, or counts as such; zero before the first
}

// NewCopies keeps copies in a folder, which must be there and be the caller's alone, and takes them for fresh for a while.
func NewCopies(dir string, every time.Duration) *Copies {
	return &Copies{dir: dir, every: every, sources: map[string]func(context.Context) ([]byte, error){}, last: map[string][]byte{}}
}

// Keep names a document and returns the path that its copy will have after the next Refresh.
func (c *Copies) Keep(name string, read func(context.Context) ([]byte, error)) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources[name] = read
	c.at = time.Time{}
	return filepath.Join(c.dir, name)
}

// Refresh reads all documents anew when that was last done some time ago, and reports whether one has changed. A copy is
// replaced whole or not at all; one whose source fails stays as it was, and is tried again after a tenth of that time.
func (c *Copies) Refresh(ctx context.Context) (changed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < c.every {
		return false, nil
	}
	var errs []error
	for name, read := range c.sources {
		fresh, err := c.refreshLocked(ctx, name, read)
		changed = changed || fresh
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	now := time.Now().Round(0) // by the wall: a frozen process's own clock may stand still
	switch {
	case len(errs) == 0:
		c.at = now
	case !c.at.IsZero():
		c.at = now.Add(-c.every * 9 / 10)
	}
	return changed, errors.Join(errs...)
}

func (c *Copies) refreshLocked(ctx context.Context, name string, read func(context.Context) ([]byte, error)) (changed bool, err error) {
	text, err := read(ctx)
	if err != nil {
		return false, err
	}
	if old, known := c.last[name]; known && bytes.Equal(old, text) {
		return false, nil
	}
	if err := renameio.WriteFile(filepath.Join(c.dir, name), text, 0o600); err != nil {
		return false, err
	}
	c.last[name] = text
	return true, nil
}
