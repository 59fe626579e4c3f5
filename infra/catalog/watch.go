package catalog

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"
)

// A Watcher makes a new catalogue whenever its file changes, and keeps the last good one while the file is wrong.
type Watcher struct {
	path     string
	interval time.Duration
	reload   chan struct{} // holds at most one wish that Run has not begun to fulfil; never closed
	onChange func(*Catalog, Warnings)
	onError  func(error)

	// The rest belongs to Run.
	current *Catalog
	sum     [sha256.Size]byte // of the text last looked at, good or not
	read    bool              // the file could be read when it was last looked at
}

// NewWatcher returns a watcher of the file at path that looks every interval (1 s when it is not above 0). current is
// the catalogue in force as it was loaded from the file (without registered models); nil for none yet.
//
// onChange gets every new good catalogue, with what Load warns of. onError gets the error of a file that cannot be read or
// used, once for each new text of the file. After Reload one of the two is called in any case. Both run on Run's goroutine, one after the other.
func NewWatcher(path string, interval time.Duration, current *Catalog, onChange func(*Catalog, Warnings), onError func(error)) *Watcher {
	if interval <= 0 {
		interval = time.Second
	}
	return &Watcher{
		path: path, interval: interval, reload: make(chan struct{}, 1), onChange: onChange, onError: onError,
		current: current, read: true,
	}
}

// Reload asks for a look at the file now, changed or not; meant for SIGHUP. It does not wait, several wishes at once
// are one, and it may be called from anywhere.
func (w *Watcher) Reload() {
	select {
	case w.reload <- struct{}{}:
	default: // the wish that waits is fulfilled after this moment, too
	}
}

// Run watches until ctx ends. It may be called once. The first look is at once, so that a change
// between the loading of the current catalogue and the start of Run is not missed.
//
// A look reads the whole file and compares its hash: the file is small, and neither its time nor its size tells a second
// change within one tick of the file system's clock. A half-written file is at worst reported and then read again.
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
	c, warnings, err := load(w.path, data)
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
