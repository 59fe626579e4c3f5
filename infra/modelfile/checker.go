package modelfile

import (
	"os"
	"sync"
	"time"
)

// A Checker remembers what it found sound, so that a file that has not changed since is read once. The zero value is
// ready. It is safe for concurrent use.
type Checker struct {
	mu    sync.Mutex
	sound map[string]os.FileInfo // by path, as it was then
}

const (
	// maxSound bounds the memory; what is forgotten is read again.
	maxSound = 1024
	// mtimeGrain is how old a file's date must be for a later change to show in it, on the coarsest file systems in use.
	mtimeGrain = 2 * time.Second
)

// Check is the function Check with a memory.
func (c *Checker) Check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	c.mu.Lock()
	was := c.sound[path]
	c.mu.Unlock()
	if was != nil && os.SameFile(was, info) && was.Size() == info.Size() && was.ModTime().Equal(info.ModTime()) {
		return nil
	}
	if err := Check(path); err != nil {
		return err
	}
	if time.Since(info.ModTime()) < mtimeGrain {
		return nil // it may still change without a trace
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sound == nil || len(c.sound) >= maxSound {
		c.sound = map[string]os.FileInfo{}
	}
	c.sound[path] = info
	return nil
}
