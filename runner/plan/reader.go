package plan

import (
	"os"
	"path/filepath"

	"reveille/infra/modelfile"
)

// A Reader caches the metadata of unchanged files. The zero value is ready to use. It is safe for concurrent use.
type Reader struct{ known modelfile.Cache[Meta] }

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
	return r.known.Read(checkpoint, info, Read)
}

// For computes the plan of a load. If the metadata cannot be read, it returns the plain plan with a warning.
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
