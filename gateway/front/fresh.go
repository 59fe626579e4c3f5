package front

import (
	"context"
	"sync"
	"time"

	"reveille/infra/state"
)

const (
	freshFor  = 20 * time.Millisecond  // a snapshot this young is not read again for a listing
	freshWait = 300 * time.Millisecond // longest a listing waits for the store
)

// reader reads snapshots for listings, one at a time, so that listings, some of which need no key, cannot load the
// store with work.
type reader struct{ mu sync.Mutex }

// look is the pool for a listing: read now where the store answers, else the mirror's copy and the reason.
func (s *Server) look() (*state.Snapshot, error) {
	m := s.cfg.Mirror
	if snap := m.Snapshot(); !snap.Taken.IsZero() && time.Since(snap.Taken) < freshFor {
		return snap, nil
	}
	if !s.reader.mu.TryLock() { // another listing reads
		if !s.cfg.Store.Up() {
			return m.Snapshot(), state.ErrUnavailable
		}
		return m.Snapshot(), nil
	}
	defer s.reader.mu.Unlock()
	return s.lookNow(context.Background())
}

// lookNow reads the pool anew: what the caller has just changed is in it.
func (s *Server) lookNow(ctx context.Context) (*state.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, freshWait)
	defer cancel()
	snap, err := s.cfg.Mirror.Refresh(ctx)
	if err != nil {
		return s.cfg.Mirror.Snapshot(), err
	}
	return snap, nil
}
