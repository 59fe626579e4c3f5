package plan

import (
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A Reader caches the metadata of unchanged files, so that a repeated read only checks the file's size and date. The
// zero value is ready. It is safe for concurrent use.
type Reader struct {
	mu    sync.Mutex
	known map[string]remembered
}

type remembered struct {
	size int64
	date time.Time
	meta Meta
	err  error
}

// maxRemembered bounds the cache; dropped entries are read again.
const maxRemembered = 1024

// Read is the function Read with a cache.
func (r *Reader) Read(checkpoint string) (Meta, error) {
	info, err := os.Stat(checkpoint)
	if err != nil {
		return Meta{}, err
	}
	if info.IsDir() {
		if c, err := os.Stat(filepath.Join(checkpoint, "config.json")); err == nil {
			info = c
		}
	}
	now := remembered{size: info.Size(), date: info.ModTime()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.known[checkpoint]; ok && was.size == now.size && was.date.Equal(now.date) {
		return was.meta, was.err
	}
	now.meta, now.err = Read(checkpoint)
	if r.known == nil || len(r.known) >= maxRemembered {
		r.known = map[string]remembered{}
	}
	r.known[checkpoint] = now
	return now.meta, now.err
}

// For makes the plan of a load. If the metadata cannot be read, it returns the plain plan with a warning.
func (r *Reader) For(checkpoint string, o Options, s Share) Plan {
	m, err := r.Read(checkpoint)
	if err != nil {
		m.Format = ""
	}
	p := Make(m, o, s)
	if err != nil {
		p.warn("metadata: %v", err)
	}
	return p
}
