package state

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	maxLargeTenants = 2               // tenants whose large values are read or written at the same time
	largeWait       = 5 * time.Second // longest wait to begin
)

// ErrLargeBusy means that a large value waited too long for others of its tenant, or of all tenants.
var ErrLargeBusy = errors.New("too many large values are being read or written")

// largeValues limits concurrent reads and writes of large values: one per tenant and maxLargeTenants in all, so that a tenant
// does not starve others, and large values do not starve the pool's own calls. It is safe for concurrent use.
type largeValues struct {
	all     chan struct{}
	mu      sync.Mutex
	tenants map[string]*tenantUse
}

// tenantUse is a tenant whose values are read or written, or wait for that.
type tenantUse struct {
	busy  chan struct{}
	users int
}

func newLargeValues() *largeValues {
	return &largeValues{all: make(chan struct{}, maxLargeTenants), tenants: map[string]*tenantUse{}}
}

// acquire waits until a value of the tenant may be read or written. The caller must call end afterwards. The error is ErrLargeBusy, or ErrUnavailable and that of ctx.
func (t *largeValues) acquire(ctx context.Context, name string) (end func(), err error) {
	t.mu.Lock()
	o := t.tenants[name]
	if o == nil {
		o = &tenantUse{busy: make(chan struct{}, 1)}
		t.tenants[name] = o
	}
	o.users++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if o.users--; o.users == 0 {
			delete(t.tenants, name)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, largeWait, ErrLargeBusy)
	defer cancel()
	for i, queue := range [...]chan struct{}{o.busy, t.all} {
		select {
		case queue <- struct{}{}:
		case <-ctx.Done():
			if i > 0 {
				<-o.busy
			}
			forget()
			if err := context.Cause(ctx); !errors.Is(err, ErrLargeBusy) {
				return nil, &unavailableError{err} // as of any call
			}
			return nil, ErrLargeBusy
		}
	}
	return func() {
		<-t.all
		<-o.busy
		forget()
	}, nil
}
