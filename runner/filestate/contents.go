package filestate

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"reveille/infra/catalog"
)

// A File is a file that determines an engine's numbers, in the state in which the engine reads it.
type File struct {
	Path  string
	State State
}

// OfEngine lists the files of an engine: a model or projector with all its parts, the program, and its libraries of
// llama.cpp. System libraries and drivers are not included.
func OfEngine(model, program string, env []string) ([]File, error) {
	program, err := filepath.EvalSymlinks(program)
	if err != nil {
		return nil, err
	}
	var out []File
	for _, path := range slices.Concat(catalog.Shards(model), []string{program}, Libraries(program, env)) {
		state, err := Settled(path)
		if err != nil {
			return nil, err
		}
		out = append(out, File{path, state})
	}
	return out, nil
}

// Unchanged reports whether all files are still in their states.
func Unchanged(files []File) bool {
	return !slices.ContainsFunc(files, func(f File) bool { return !f.State.Is(f.Path) })
}

// Contents caches the digests of files' contents. It is safe for concurrent use.
type Contents struct {
	// Sampled reads only samples after the first wholeFile bytes, since reading all of a large model would take longer
	// than its load.
	Sampled bool

	mu    sync.Mutex
	known map[File][sha256.Size]byte
}

const (
	wholeFile   = 64 << 20
	sampleStep  = 4 << 20
	sampleSize  = 4 << 10
	chunk       = 1 << 20
	maxContents = 1024
)

// Digest returns the digest of a file's content. It fails unless the file stays in its state while it is read.
func (c *Contents) Digest(ctx context.Context, f File) (sum [sha256.Size]byte, err error) {
	c.mu.Lock()
	sum, known := c.known[f]
	c.mu.Unlock()
	if known {
		return sum, nil
	}
	file, err := os.Open(f.Path)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	h := sha256.New()
	fmt.Fprintf(h, "%d\n", f.State.Size)
	for at := int64(0); at < f.State.Size; {
		if ctx.Err() != nil {
			return sum, context.Cause(ctx)
		}
		part, step := int64(chunk), int64(chunk)
		if c.Sampled && at >= wholeFile {
			part, step = sampleSize, sampleStep
		}
		if _, err := io.Copy(h, io.NewSectionReader(file, at, min(part, f.State.Size-at))); err != nil {
			return sum, err
		}
		at += step
	}
	if !f.State.Is(f.Path) {
		return sum, fmt.Errorf("%s changed", filepath.Base(f.Path))
	}
	h.Sum(sum[:0])
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxContents {
		c.known = map[File][sha256.Size]byte{}
	}
	c.known[f] = sum
	return sum, nil
}
