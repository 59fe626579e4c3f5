package engine

import (
	"strings"
	"sync"
	"time"
)

// Bounds of a log.
const (
	DefaultLogLines = 2000 // lines kept
	maxLine         = 4096 // bytes of a line; longer ones are cut into several
	subscriberLines = 256  // lines a subscriber may lag behind before it loses some
)

// A Line is one line of an engine's output.
type Line struct {
	N    uint64 // counts from 1 without gaps, so that a subscriber sees what it lost
	Time time.Time
	Text string
}

// A Log keeps the last lines of an engine's output and hands new ones to subscribers. It never blocks the engine: a
// subscriber that is too slow loses lines. It is safe for concurrent use.
type Log struct {
	mu     sync.Mutex
	ring   []Line // filled up to max, then overwritten; line n lies at (n-1) % max
	max    int
	last   uint64
	subs   map[chan Line]struct{}
	closed bool
}

// newLog returns a log of at most max lines, [DefaultLogLines] when max is not positive.
func newLog(max int) *Log {
	if max <= 0 {
		max = DefaultLogLines
	}
	return &Log{max: max, subs: map[chan Line]struct{}{}}
}

// append adds a line; nothing is added after close.
func (l *Log) append(text string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.last++
	line := Line{l.last, now, text}
	if len(l.ring) < l.max {
		l.ring = append(l.ring, line)
	} else {
		l.ring[(l.last-1)%uint64(l.max)] = line
	}
	for ch := range l.subs {
		select {
		case ch <- line:
		default: // too slow: a gap in N shows it
		}
	}
}

// close ends the subscriptions; the lines stay readable.
func (l *Log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for ch := range l.subs {
		close(ch)
		delete(l.subs, ch)
	}
}

// Tail returns the last n lines, oldest first; all that are kept when n is negative.
func (l *Log) Tail(n int) []Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tailLocked(n)
}

func (l *Log) tailLocked(n int) []Line {
	if n < 0 || n > len(l.ring) {
		n = len(l.ring)
	}
	out := make([]Line, 0, n)
	for i := l.last - uint64(n); i < l.last; i++ {
		out = append(out, l.ring[i%uint64(l.max)])
	}
	return out
}

// Subscribe returns the last n lines and a channel with all later ones, without a line lost or doubled in between. The
// channel is closed when the engine has ended or cancel was called, which must happen.
func (l *Log) Subscribe(n int) (past []Line, next <-chan Line, cancel func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ch := make(chan Line, subscriberLines)
	past = l.tailLocked(n)
	if l.closed {
		close(ch)
		return past, ch, func() {}
	}
	l.subs[ch] = struct{}{}
	return past, ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, ok := l.subs[ch]; ok {
			delete(l.subs, ch)
			close(ch)
		}
	}
}

// A lineSplitter cuts a byte stream into lines at \n and \r (progress bars use the latter), drops empty ones, and
// cuts lines longer than maxLine.
type lineSplitter struct {
	buf  []byte
	emit func(string)
}

func (s *lineSplitter) write(p []byte) {
	for _, b := range p {
		if b == '\n' || b == '\r' {
			s.flush()
			continue
		}
		s.buf = append(s.buf, b)
		if len(s.buf) == maxLine {
			s.flush()
		}
	}
}

func (s *lineSplitter) flush() {
	if len(s.buf) > 0 {
		s.emit(strings.ToValidUTF8(string(s.buf), "\uFFFD"))
		s.buf = s.buf[:0]
	}
}
