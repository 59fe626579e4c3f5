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
// reading a request and writing its response. Without a watch, a request that waits, or streams from a silent engine,
// would outlive its client.
//
// A watch asks the system now and then whether the peer has closed its half of the connection (POLLRDHUP). It reads
// nothing, sets no deadline, works with pipelined bytes in the socket, and does not affect keep-alive. A client that
// closes only its sending half counts as gone, as in net/http. On systems other than Linux, and for a connection that
// is not a socket, a watch does nothing, and only a failed write reveals a lost client.
//
// A request shorter than the delay costs setting and stopping a timer. A Watcher is safe for concurrent use.
type Watcher struct{ delay time.Duration }

// NewWatcher creates a watcher that first looks at a connection after delay (0: DefaultWatchDelay), then every 2*delay.
func NewWatcher(delay time.Duration) *Watcher {
	if delay <= 0 {
		delay = DefaultWatchDelay
	}
	return &Watcher{delay: delay}
}

// Watch watches one request's client.
type Watch struct {
	timer *time.Timer

	mu     sync.Mutex // held while the socket is used and while onGone runs, so that Stop waits for both
	every  time.Duration
	conn   net.Conn
	raw    syscall.RawConn // of conn, once it was looked at
	onGone func()          // nil once the watch was stopped or the client has left
}

var watchPool = sync.Pool{New: func() any {
	w := new(Watch)
	w.timer = time.AfterFunc(time.Hour, w.check)
	w.timer.Stop()
	return w
}}

// Arm starts a watch on conn, which can be wrapped by types with a NetConn method. onGone is called at most once, on a
// separate goroutine. It must be quick (Canceler.Cancel is) and must not call Stop. The caller must Stop the watch
// before conn is closed or serves its next request.
func (w *Watcher) Arm(conn net.Conn, onGone func()) *Watch {
	watch := watchPool.Get().(*Watch)
	watch.mu.Lock()
	watch.every, watch.conn, watch.onGone = 2*w.delay, conn, onGone
	watch.mu.Unlock()
	watch.timer.Reset(w.delay)
	return watch
}

// Stop ends the watch. After it returns, onGone is not running and will not run. Stop a watch exactly once, as its
// memory serves the next one. It does nothing on a nil Watch.
func (w *Watch) Stop() {
	if w == nil {
		return
	}
	w.mu.Lock()
	w.timer.Stop()
	w.conn, w.raw, w.onGone = nil, nil, nil
	w.mu.Unlock()
	watchPool.Put(w)
}

// check looks once. A timer that fires while its watch is being stopped may look for the next watch early, which is
// harmless.
func (w *Watch) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.onGone == nil {
		return
	}
	if w.raw == nil {
		if w.raw = socketOf(w.conn); w.raw == nil {
			return
		}
	}
	if !hasHungUp(w.raw) {
		w.timer.Reset(w.every)
		return
	}
	w.onGone()
	w.onGone = nil
}

// socketOf returns the socket of conn, looking through wrappers.
func socketOf(conn net.Conn) syscall.RawConn {
	for range 8 { // bounds a cycle; no real chain of wrappers is longer
		n, wrapped := conn.(interface{ NetConn() net.Conn })
		if !wrapped {
			break
		}
		conn = n.NetConn()
	}
	if sc, ok := conn.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}
