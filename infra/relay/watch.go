package relay

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// DefaultWatchDelay is how long a request must last before its client is watched.
const DefaultWatchDelay = 250 * time.Millisecond

// Watcher notices clients that leave while their request is served. fasthttp does not look at a connection between
// reading a request and writing its answer, so a request that waits, or streams from a silent engine, would outlive its
// client.
//
// On Linux all watched sockets are in one epoll set, asked only for the peer's half of the connection being closed
// (EPOLLRDHUP), and one goroutine sleeps on that set in the runtime's poller. So a watch reads nothing, sets no
// deadline, works when pipelined bytes lie in the socket, leaves keep-alive as it was and costs no goroutine. A client
// that closes only its sending half counts as gone, as in net/http. Elsewhere, and for a connection that is no socket,
// a watch does nothing: a lost client is then noticed by a failed write.
//
// A request shorter than the delay costs setting and stopping a timer. A Watcher is safe for concurrent use.
type Watcher struct {
	delay time.Duration

	mu      sync.Mutex
	poll    poller
	watches map[int64]*Watch // those in the set
	lastID  int64
	closed  bool
}

// NewWatcher makes a watcher; delay 0 means DefaultWatchDelay. Close it when no request is served any more.
func NewWatcher(delay time.Duration) *Watcher {
	if delay <= 0 {
		delay = DefaultWatchDelay
	}
	return &Watcher{delay: delay, watches: make(map[int64]*Watch)}
}

type watchState uint8

const (
	watchOff   watchState = iota
	watchArmed            // the timer runs
	watchOn               // the socket is in the set
	watchFired            // the client left
)

// Watch is the watch over one request.
type Watch struct {
	w     *Watcher
	timer *time.Timer

	// mu is held while the socket is touched and while onGone runs, so that Stop waits for both. Watcher.mu may be
	// taken under it, never the other way round.
	mu     sync.Mutex
	state  watchState
	id     int64
	conn   net.Conn
	raw    syscall.RawConn
	onGone func()
}

var watchPool = sync.Pool{New: func() any {
	t := new(Watch)
	t.timer = time.AfterFunc(time.Hour, t.start)
	t.timer.Stop()
	return t
}}

// Arm begins a watch over conn, which may be wrapped by types with a NetConn method. onGone is called at most once, on
// the watcher's goroutine: it must be quick (Call.Cancel is) and must not call Stop. A client that has left before is
// noticed after the delay. The caller must Stop the watch before conn is closed or serves its next request.
func (w *Watcher) Arm(conn net.Conn, onGone func()) *Watch {
	t := watchPool.Get().(*Watch)
	t.mu.Lock()
	t.w, t.conn, t.onGone, t.state = w, conn, onGone, watchArmed
	t.mu.Unlock()
	t.timer.Reset(w.delay)
	return t
}

// Stop ends the watch; after it returned onGone is not running and will not run. Stop a watch exactly once: its memory
// serves the next one. On a nil Watch it does nothing.
func (t *Watch) Stop() {
	if t == nil {
		return
	}
	t.timer.Stop()
	t.mu.Lock()
	t.leave()
	t.w, t.conn, t.raw, t.onGone, t.state = nil, nil, nil, nil, watchOff
	t.mu.Unlock()
	watchPool.Put(t)
}

// start puts the socket into the set. A timer that fired while its watch was stopped may start the next one early,
// which does no harm.
func (t *Watch) start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != watchArmed {
		return
	}
	if t.raw = socketOf(t.conn); t.raw == nil {
		return
	}
	if w := t.w; !w.join(t) && !w.isClosed() {
		t.timer.Reset(w.delay) // out of file descriptors, perhaps: try again
	}
}

// leave takes the socket out of the set. t.mu is held.
func (t *Watch) leave() {
	if t.state != watchOn {
		return
	}
	w := t.w
	w.mu.Lock()
	delete(w.watches, t.id)
	poll := w.poll
	w.mu.Unlock()
	poll.remove(t.raw)
}

// gone is called by the poller for a socket whose peer has closed.
func (w *Watcher) gone(id int64) {
	w.mu.Lock()
	t := w.watches[id]
	w.mu.Unlock()
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.w != w || t.state != watchOn || t.id != id {
		return // stopped meanwhile, and perhaps used again
	}
	t.leave()
	t.state = watchFired
	t.onGone()
}

// join adds t, whose lock is held, to the set.
func (w *Watcher) join(t *Watch) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || !w.poll.open(w.gone) {
		return false
	}
	w.lastID++
	t.id = w.lastID
	w.watches[t.id] = t
	if !w.poll.add(t.raw, t.id) {
		delete(w.watches, t.id)
		return false
	}
	t.state = watchOn
	return true
}

func (w *Watcher) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// Close ends all watching and waits for the watcher's goroutine. Watches still have to be stopped.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closed = true
	poll := w.poll
	w.mu.Unlock()
	poll.close()
}

// socketOf looks through wrappers for the socket of conn.
func socketOf(conn net.Conn) syscall.RawConn {
	for range 8 { // no chain of wrappers is longer; a cycle would be
		if n, ok := conn.(interface{ NetConn() net.Conn }); ok {
			conn = n.NetConn()
			continue
		}
		if sc, ok := conn.(syscall.Conn); ok {
			raw, err := sc.SyscallConn()
			if err != nil {
				return nil
			}
			return raw
		}
		return nil
	}
	return nil
}
