// Package logring keeps the last lines of a log in memory, for those who read it over HTTP.
package logring

import (
	"strings"
	"sync"
	"time"
)

// Bounds of a log.
const (
	DefaultLines    = 2000 // lines kept
	maxLine         = 4096 // bytes of a line; longer ones are cut into several
	subscriberLines = 256  // lines a subscriber may lag behind before it loses some
)

// A Line is one line of a log.
type Line struct {
	N    uint64 // counts from 1 without gaps, so that a subscriber sees what it lost
	Time time.Time
	Text string
}

// A Ring keeps the last lines of a log and hands new ones to subscribers. It never blocks the writer: a subscriber that is
// too slow loses lines. It is safe for concurrent use.
type Ring struct {
	mu     sync.Mutex
	ring   []Line // filled up to max, then overwritten; line n lies at (n-1) % max
	max    int
	last   uint64
	subs   map[chan Line]struct{}
	closed bool
}

// New returns a ring of at most max lines, [DefaultLines] when max is not positive.
func New(max int) *Ring {
	if max <= 0 {
		max = DefaultLines
	}
	return &Ring{max: max, subs: map[chan Line]struct{}{}}
}

// Append adds a line; nothing is added after Close.
func (r *Ring) Append(text string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.last++
	line := Line{r.last, now, text}
	if len(r.ring) < r.max {
		r.ring = append(r.ring, line)
	} else {
		r.ring[(r.last-1)%uint64(r.max)] = line
	}
	for ch := range r.subs {
		select {
		case ch <- line:
		default: // too slow: a gap in N shows it
		}
	}
}

// Close ends the subscriptions; the lines stay readable.
func (r *Ring) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for ch := range r.subs {
		close(ch)
		delete(r.subs, ch)
	}
}

// Tail returns the last n lines, oldest first; all that are kept when n is negative.
func (r *Ring) Tail(n int) []Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tailLocked(n)
}

func (r *Ring) tailLocked(n int) []Line {
	if n < 0 || n > len(r.ring) {
		n = len(r.ring)
	}
	out := make([]Line, 0, n)
	for i := r.last - uint64(n); i < r.last; i++ {
		out = append(out, r.ring[i%uint64(r.max)])
	}
	return out
}

// Subscribe returns the last n lines and a channel with all later ones, without a line lost or doubled in between. The
// channel is closed when the ring is closed or cancel was called, which must happen.
func (r *Ring) Subscribe(n int) (past []Line, next <-chan Line, cancel func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch := make(chan Line, subscriberLines)
	past = r.tailLocked(n)
	if r.closed {
		close(ch)
		return past, ch, func() {}
	}
	r.subs[ch] = struct{}{}
	return past, ch, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, ok := r.subs[ch]; ok {
			delete(r.subs, ch)
			close(ch)
		}
	}
}

// A Splitter cuts a byte stream into lines at \n and \r (progress bars use the latter), drops empty ones, and cuts those
// that are too long.
type Splitter struct {
	buf  []byte
	Emit func(string)
}

// Add takes the next bytes of the stream.
func (s *Splitter) Add(p []byte) {
	for _, b := range p {
		if b == '\n' || b == '\r' {
			s.Flush()
			continue
		}
		s.buf = append(s.buf, b)
		if len(s.buf) == maxLine {
			s.Flush()
		}
	}
}

// Flush ends the last line.
func (s *Splitter) Flush() {
	if len(s.buf) > 0 {
		s.Emit(strings.ToValidUTF8(string(s.buf), "\uFFFD"))
		s.buf = s.buf[:0]
	}
}
