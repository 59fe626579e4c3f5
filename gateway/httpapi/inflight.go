package httpapi

import "sync"

// inflight is the set of open exchanges, which the server cuts when it ends. The zero value is ready.
type inflight struct {
	mu  sync.Mutex
	all map[*exchange]struct{}
}

func (f *inflight) add(x *exchange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[*exchange]struct{}{}
	}
	f.all[x] = struct{}{}
}

func (f *inflight) remove(x *exchange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, x)
}

func (f *inflight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

// cancelAll ends every open exchange with cause.
func (f *inflight) cancelAll(cause error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for x := range f.all {
		x.abandon(cause)
	}
}
