package httpapi

import "sync"

// inflight are the open exchanges, so that the end of the server can cut them. The zero value is ready.
type inflight struct {
	mu  sync.Mutex
	all map[*exchange]struct{}
}

func (u *inflight) add(x *exchange) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[*exchange]struct{}{}
	}
	u.all[x] = struct{}{}
}

func (u *inflight) remove(x *exchange) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.all, x)
}

// cut ends every open exchange with cause.
func (u *inflight) cut(cause error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for x := range u.all {
		x.abandon(cause)
	}
}
