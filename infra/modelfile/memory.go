package modelfile

import (
	"os"
	"sync"
	"time"
)

// A Memory remembers what was read of files that have not changed since. The zero value is ready. It is safe for concurrent
// use.
type Memory[T any] struct {
	mu    sync.Mutex
	known map[string]remembered[T] // by path
}

type remembered[T any] struct {
	info  os.FileInfo // as it was then
	value T
}

const (
	// maxRemembered bounds the memory; what is forgotten is read again.
	maxRemembered = 1024
	// mtimeGrain is how old a file's date must be for a later change to show in it, on the coarsest file systems in use.
	mtimeGrain = 2 * time.Second
)

// Read returns what read returns of a file, whose state info is, without an error again only once the file has changed.
func (m *Memory[T]) Read(path string, info os.FileInfo, read func(path string) (T, error)) (T, error) {
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
	if m.known == nil || len(m.known) >= maxRemembered {
		m.known = map[string]remembered[T]{}
	}
	m.known[path] = remembered[T]{info, value}
	return value, nil
}

// A Checker is the function Check with a memory of what it found sound.
type Checker struct{ sound Memory[struct{}] }

// Check is the function Check.
func (c *Checker) Check(path string) error {
	info, err := os.Stat(path)
	if err == nil {
		_, err = c.sound.Read(path, info, func(path string) (struct{}, error) { return struct{}{}, Check(path) })
	}
	return err
}
