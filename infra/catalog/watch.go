package catalog

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"
)

// A Watcher makes a new catalog whenever its file changes, and keeps the last good one while the file is wrong.
type Watcher struct {
	path     string
	interval time.Duration
	reload   chan struct{} // capacity 1: a request that Run has not started to serve; never closed
	onChange func(*Catalog, Problems)
	onError  func(error)

	// The rest belongs to Run.
	current *Catalog
	sum     [sha256.Size]byte // of the text last looked at, good or not
	read    bool              // the file was readable at the last look
}

// NewWatcher returns a watcher of the file at path that checks it every interval. current is the catalog in force as
// loaded from the file (without registered models); nil if there is none yet.
//
// onChange gets every new valid catalog, with Load's warnings. onError gets the error of a file that cannot be read
// or used, once for each new text of the file. After Reload one of the two is always called. Both run on Run's
// goroutine, one after the other.
func NewWatcher(path string, interval time.Duration, current *Catalog, onChange func(*Catalog, Problems), onError func(error)) *Watcher {
	return &Watcher{
		path: path, interval: interval, reload: make(chan struct{}, 1), onChange: onChange, onError: onError,
		current: current, read: true,
	}
}

// Reload requests a check of the file now, changed or not; meant for SIGHUP. It does not wait. Several concurrent
// requests are one. It is safe for concurrent use.
func (w *Watcher) Reload() {
	select {
	case w.reload <- struct{}{}:
	default: // the pending request is served after this moment, too
	}
}

// Run watches until ctx ends. It can be called once. The first check is immediate, so that a change between the loading
// of the current catalog and the start of Run is not missed.
//
// A check reads the whole file and compares its hash, because the file is small, and neither its time nor its size
// shows a second change within one tick of the file system's clock. A half-written file is at worst reported and then
// read again.
func (w *Watcher) Run(ctx context.Context) {
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	for wished := false; ; {
		w.look(wished)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			wished = false
		case <-w.reload:
			wished = true
		}
	}
}

// look reads the file and reports the result if it is new, or on request.
func (w *Watcher) look(wished bool) {
	data, err := readBounded(w.path)
	if err != nil {
		if w.read || wished {
			w.onError(fmt.Errorf("catalog: %w", err))
		}
		w.read = false
		return
	}
	sum := sha256.Sum256(data)
	known := w.read && sum == w.sum
	w.read, w.sum = true, sum
	if known && !wished {
		return
	}
	c, warnings, err := Parse(w.path, data)
	if err != nil {
		w.onError(err)
		return
	}
	if w.current != nil && w.current.Version == c.Version && !wished {
		return
	}
	w.current = c
	w.onChange(c, warnings)
}
