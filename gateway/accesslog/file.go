package accesslog

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	queued       = 4096 // lines that wait for the file
	flushTimeout = time.Second
)

// Log is an access log. Lines are written by one goroutine: whoever writes one does not wait for a slow disk or a
// reader of standard output that has stopped. Lines that find its queue full are dropped. It is safe for concurrent
// use. A nil Log writes nothing.
type Log struct {
	f       *os.File
	lines   chan []byte
	dropped atomic.Int64
	stop    chan struct{}
	done    chan struct{}
}

// Open appends to a file, which only its owner may read, or writes to standard output for "-". "" disables the log.
// Call end once nothing writes any more.
func Open(name string) (log *Log, end func(), err error) {
	if name == "" {
		return nil, func() {}, nil
	}
	l := &Log{f: os.Stdout, lines: make(chan []byte, queued), stop: make(chan struct{}), done: make(chan struct{})}
	if name != "-" {
		if l.f, err = open(name); err != nil {
			return nil, nil, err
		}
	}
	go l.run()
	return l, l.close, nil
}

// Dropped counts the lines that were not written: what they are written to was full or did not take them in time.
func (l *Log) Dropped() int64 {
	if l == nil {
		return 0
	}
	return l.dropped.Load()
}

// open opens a file to append to it. A pipe that nobody reads yet is opened for both directions: for writing alone,
// open(2) waits for a reader or fails.
func open(name string) (*os.File, error) {
	opened, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ENXIO) {
		return os.OpenFile(name, os.O_RDWR, 0)
	}
	return opened, err
}

func (l *Log) queue(line []byte) {
	select {
	case l.lines <- line:
	default:
		l.dropped.Add(1)
	}
}

// close writes what is queued, if that takes no longer than flushTimeout.
func (l *Log) close() {
	close(l.stop)
	select {
	case <-l.done:
	case <-time.After(flushTimeout):
	}
}

func (l *Log) run() {
	defer close(l.done)
	for {
		select {
		case line := <-l.lines:
			l.write(line)
		case <-l.stop:
			for len(l.lines) > 0 {
				l.write(<-l.lines)
			}
			if l.f != os.Stdout {
				_ = l.f.Close() // each line was written
			}
			return
		}
	}
}

func (l *Log) write(line []byte) {
	if _, err := l.f.Write(line); err != nil {
		l.dropped.Add(1) // a full disk must not fail requests
	}
}
