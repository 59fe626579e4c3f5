package modelfile

import (
	"bufio"
	"errors"
	"os"
	"strings"
	"sync"
	"time"
)

// maxContext bounds the context that is believed of a model, in tokens.
const maxContext = 1 << 31

var errContext = errors.New("the header of the GGUF file is not sound, or names no context")

// Context is the longest sequence that a GGUF file's model was trained for, in tokens. Of the file no more is read than the
// metadata up to it, within the bounds of Check, and nothing is mapped: the file may change meanwhile.
func Context(path string) (tokens int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0, errors.Join(err, errContext)
	}
	w := walker{r: bufio.NewReaderSize(f, 64<<10), size: uint64(info.Size())}
	if string(w.bytes(4)) != "GGUF" {
		return 0, errContext
	}
	version, _, keys := w.u32(), w.u64(), w.u64()
	if version < 2 || version > 3 || keys > maxKeys {
		return 0, errContext
	}
	for ; keys > 0 && !w.over(); keys-- {
		name, n := w.member() // a key of the architecture: bert.context_length
		if _, key, _ := strings.Cut(name, "."); key == "context_length" && n > 0 && n <= maxContext && !w.over() {
			return int64(n), nil
		}
	}
	return 0, errContext
}

// A ContextReader remembers the contexts of files that have not changed since. The zero value is ready. It is safe for
// concurrent use.
type ContextReader struct {
	mu    sync.Mutex
	known map[string]knownContext
}

type knownContext struct {
	size   int64
	date   time.Time
	tokens int64
}

// Context is the function Context with a memory, 0 where the file says nothing. info is of the file as it is now; what is
// not a regular file is not opened.
func (c *ContextReader) Context(path string, info os.FileInfo) (tokens int64) {
	if !info.Mode().IsRegular() {
		return 0
	}
	now := knownContext{size: info.Size(), date: info.ModTime()}
	c.mu.Lock()
	was, known := c.known[path]
	c.mu.Unlock()
	if known && was.size == now.size && was.date.Equal(now.date) {
		return was.tokens
	}
	now.tokens, _ = Context(path)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= mostSound {
		c.known = map[string]knownContext{}
	}
	c.known[path] = now
	return now.tokens
}
