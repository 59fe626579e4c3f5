package accesslog

import (
	"bytes"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	queued   = 4096 // lines that wait for the file
	lastCall = time.Second
)

// file is what lines are written to, by one goroutine: whoever writes a line does not wait for a slow disk or a reader of standard
// output that has stopped. Lines that find its queue full are dropped. A file that was renamed or removed is opened anew by its
// name, so that it may be rotated either way.
type file struct {
	name    string // "-" is standard output
	f       *os.File
	lines   chan []byte
	dropped atomic.Int64
	stop    chan struct{}
	done    chan struct{}
}

func open(name string) (*file, error) {
	f := &file{name: name, f: os.Stdout, lines: make(chan []byte, queued), stop: make(chan struct{}), done: make(chan struct{})}
	if name != "-" {
		var err error
		if f.f, err = f.open(); err != nil {
			return nil, err
		}
	}
	go f.run()
	return f, nil
}

// open opens the file by its name. A pipe that nobody reads yet is opened for both directions: for writing alone, open(2) waits for
// a reader or fails.
func (f *file) open() (*os.File, error) {
	opened, err := os.OpenFile(f.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ENXIO) {
		return os.OpenFile(f.name, os.O_RDWR, 0)
	}
	return opened, err
}

// Write queues a line.
func (f *file) Write(line []byte) (int, error) {
	select {
	case f.lines <- bytes.Clone(line):
	default:
		f.dropped.Add(1)
	}
	return len(line), nil
}

// close writes what is queued, if that takes no longer than lastCall.
func (f *file) close() {
	close(f.stop)
	select {
	case <-f.done:
	case <-time.After(lastCall):
	}
}

func (f *file) run() {
	defer close(f.done)
	for {
		select {
		case line := <-f.lines:
			f.write(line)
		case <-f.stop:
			for len(f.lines) > 0 {
				f.write(<-f.lines)
			}
			if f.name != "-" {
				_ = f.f.Close() // each line was written
			}
			return
		}
	}
}

// write writes a line to the file that has the name now.
func (f *file) write(line []byte) {
	if f.name != "-" {
		f.follow()
	}
	if _, err := f.f.Write(line); err != nil {
		f.dropped.Add(1) // a full disk must not fail requests
	}
}

// follow opens the file anew if another has its name, or none. What cannot be opened leaves the old one.
func (f *file) follow() {
	if named, err := os.Stat(f.name); err == nil {
		if mine, err := f.f.Stat(); err == nil && os.SameFile(named, mine) {
			return
		}
	}
	if fresh, err := f.open(); err == nil {
		_ = f.f.Close() // each line was written
		f.f = fresh
	}
}
