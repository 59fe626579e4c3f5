package httpapi

import "sync"

// inflight is the set of open exchanges, which the server cuts when it ends. The zero value is ready.
type inflight struct {
	mu  sync.Mutex
	all []*exchange // each knows its place
}

func (f *inflight) add(x *exchange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x.place = len(f.all)
	f.all = append(f.all, x)
}

// remove takes out an exchange that was added.
func (f *inflight) remove(x *exchange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := len(f.all) - 1
	f.all[x.place], f.all[last].place = f.all[last], x.place
	f.all[last] = nil
	f.all = f.all[:last]
}

func (f *inflight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

// cut ends every open exchange with cause.
func (f *inflight) cut(cause error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.all {
		x.abandon(cause)
	}
}
