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
// reading a request and writing its answer. Without a watch, a request that waits, or streams from a silent engine,
// would outlive its client.
//
// On Linux all watched sockets are in one epoll set, which only reports that the peer closed its half of the connection
// (EPOLLRDHUP). One goroutine waits on that set in the runtime's poller. A watch therefore reads nothing, sets no
// deadline, works with pipelined bytes in the socket, does not affect keep-alive and costs no goroutine. A client that
// closes only its sending half counts as gone, as in net/http. On other systems, and for a connection that is not a
// socket, a watch does nothing, and only a failed write reveals a lost client.
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

// NewWatcher creates a watcher; delay 0 means DefaultWatchDelay. Close it when no request is being served any more.
func NewWatcher(delay time.Duration) *Watcher {
	if delay <= 0 {
		delay = DefaultWatchDelay
	}
	return &Watcher{delay: delay, watches: make(map[int64]*Watch)}
}

type watchState uint8

const (
	watchOff   watchState = iota
	watchArmed            // the timer is running
	watchOn               // the socket is in the set
	watchFired            // the client left
)

// Watch watches one request's client.
type Watch struct {
	w     *Watcher
	timer *time.Timer

	// mu is held while the socket is used and while onGone runs, so that Stop waits for both. Watcher.mu may be taken
	// under it, never the other way round.
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

// Arm starts a watch on conn, which may be wrapped by types with a NetConn method. onGone is called at most once, on
// the watcher's goroutine. It must be quick (Call.Cancel is) and must not call Stop. A client that has already left is
// noticed after the delay. The caller must Stop the watch before conn is closed or serves its next request.
func (w *Watcher) Arm(conn net.Conn, onGone func()) *Watch {
	t := watchPool.Get().(*Watch)
	t.mu.Lock()
	t.w, t.conn, t.onGone, t.state = w, conn, onGone, watchArmed
	t.mu.Unlock()
	t.timer.Reset(w.delay)
	return t
}

// Stop ends the watch. After it returns, onGone is not running and will not run. Stop a watch exactly once, as its
// memory serves the next one. It does nothing on a nil Watch.
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

// start adds the socket to the set. A timer that fires while its watch is being stopped may start the next watch early,
// which is harmless.
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

// leave removes the socket from the set.
// REQUIRES: t.mu is held.
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

// The poller calls gone for a socket whose peer has closed.
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
		return // stopped meanwhile, and perhaps reused
	}
	t.leave()
	t.state = watchFired
	t.onGone()
}

// join adds t to the set.
// REQUIRES: t.mu is held.
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

// Close ends all watching and waits for the watcher's goroutine. Watches must still be stopped.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closed = true
	poll := w.poll
	w.mu.Unlock()
	poll.close()
}

// socketOf returns the socket of conn, looking through wrappers.
func socketOf(conn net.Conn) syscall.RawConn {
	for range 8 { // bounds a cycle; no real chain of wrappers is longer
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
