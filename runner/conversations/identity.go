package conversations

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"reveille/runner/filestate"
)

// A file is identified by its first wholeFile bytes, and by sampleSize bytes of every sampleStep of a larger one.
// Reading all of a large model would take longer than its load.
const (
	wholeFile   = 64 << 20
	sampleStep  = 4 << 20
	sampleSize  = 4 << 10
	maxContents = 1024
)

// content is what is known of a file's content while the file is in a state.
type content struct {
	state filestate.State
	sum   [sha256.Size]byte
}

// Identity stands for all that determines an engine's numbers, alike on every host: the model's name, the contents of
// its files and of the program, arguments and variables. Only an engine with the same identity gets a saved state.
type Identity [sha256.Size]byte

// identify computes the engine's identity. It ends with ctx, and then there is none.
func (e *Engine) identify(ctx context.Context) {
	h := sha256.New()
	fmt.Fprintf(h, "conversations v1 %s\n", runtime.GOARCH)
	for _, part := range e.parts {
		fmt.Fprintf(h, "%q\n", part)
	}
	for _, path := range e.paths {
		c, err := e.store.contentOf(ctx, path, e.files[path])
		if err != nil {
			e.log.Warn("conversations are not kept", "error", err)
			return
		}
		fmt.Fprintf(h, "file %x\n", c)
	}
	h.Sum(e.id[:0])
}

// awaitIdentity waits until the engine is identified. It returns false if it cannot be, or ctx ends.
func (e *Engine) awaitIdentity(ctx context.Context) bool {
	select {
	case <-e.identified:
		return e.id != Identity{}
	case <-ctx.Done():
		return false
	}
}

// contentOf returns the digest of a file's content, which is read once for each state of the file.
func (s *Store) contentOf(ctx context.Context, path string, state filestate.State) (sum [sha256.Size]byte, err error) {
	s.mu.Lock()
	known, ok := s.contents[path]
	s.mu.Unlock()
	if ok && known.state == state {
		return known.sum, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	fmt.Fprintf(h, "%d\n", state.Size)
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, min(state.Size, wholeFile))); err != nil {
		return sum, err
	}
	for at := int64(wholeFile); at < state.Size; at += sampleStep {
		if ctx.Err() != nil {
			return sum, context.Cause(ctx)
		}
		if _, err := io.Copy(h, io.NewSectionReader(f, at, min(sampleSize, state.Size-at))); err != nil {
			return sum, err
		}
	}
	if !state.Is(path) {
		return sum, fmt.Errorf("%s changed", filepath.Base(path))
	}
	h.Sum(sum[:0])
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.contents) >= maxContents {
		clear(s.contents)
	}
	s.contents[path] = content{state, sum}
	return sum, nil
}
