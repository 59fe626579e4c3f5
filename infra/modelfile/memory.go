package modelfile

import (
	"os"
	"sync"
	"time"
)

// A Cache keeps what was read of files that have not changed since. The zero value is ready. It is safe for concurrent
// use.
type Cache[T any] struct {
	mu    sync.Mutex
	known map[string]cached[T] // by path
}

type cached[T any] struct {
	info  os.FileInfo // as it was then
	value T
}

const (
	// maxCached bounds the memory; what is forgotten is read again.
	maxCached = 1024
	// mtimeGrain is how old a file's date must be for a later change to show in it, on the coarsest file systems in
	// use.
	mtimeGrain = 2 * time.Second
)

// Read returns what read returns of a file, whose state info is, without an error again only once the file has changed.
func (m *Cache[T]) Read(path string, info os.FileInfo, read func(path string) (T, error)) (T, error) {
	m.mu.Lock()
	was, known := m.known[path]
	m.mu.Unlock()
	if known && os.SameFile(was.info, info) && was.info.Size() == info.Size() && was.info.ModTime().Equal(info.ModTime()) {
		return was.value, nil
	}
	value, err := read(path)
	if err != nil || time.Since(info.ModTime()) < mtimeGrain { // else it may still change without a trace
		return value, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil || len(m.known) >= maxCached {
		m.known = map[string]cached[T]{}
	}
	m.known[path] = cached[T]{info, value}
	return value, nil
}

// A Checker is the function Check with a memory of what it found sound.
type Checker struct{ valid Cache[struct{}] }

// Check is the function Check.
func (c *Checker) Check(path string) error {
	info, err := os.Stat(path)
	if err == nil {
		_, err = c.valid.Read(path, info, func(path string) (struct{}, error) { return struct{}{}, Check(path) })
	}
	return err
}
