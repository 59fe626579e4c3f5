package conversations

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"reveille/runner/filestate"
)

// A file is identified by its first wholeFile bytes, and by sampleSize bytes of every sampleStep of a larger one. Reading all of a large model would take longer than its load.
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

// identify computes the engine's identity: what Signature is to this host, by contents instead of by files, for all
// hosts of the pool. It ends with ctx, and then there is none.
func (e *Engine) identify(ctx context.Context) {
	h := sha256.New()
	fmt.Fprintf(h, "conversations v1 %s\n", runtime.GOARCH)
	for _, part := range e.portable {
		fmt.Fprintf(h, "%q\n", part)
	}
	for _, path := range e.paths {
		c, err := e.store.contentOf(ctx, path, e.files[path])
		if err != nil {
			e.log.Warn("conversations are not shared with other hosts", "error", err)
			return
		}
		fmt.Fprintf(h, "file %x\n", c)
	}
	id := Signature(h.Sum(nil))
	e.identity.Store(&id)
}

// portableEnv reports whether a variable's value means the same on every host.
func portableEnv(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return !strings.HasSuffix(name, "_VISIBLE_DEVICES")
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

// portableOf returns what determines an engine's numbers besides its files.
func portableOf(p Process, arguments, variables []string) []string {
	out := append([]string{"model " + p.Model}, arguments...)
	for _, kv := range variables {
		if portableEnv(kv) {
			out = append(out, "variable "+kv)
		}
	}
	slices.Sort(out[1+len(arguments):])
	return out
}
