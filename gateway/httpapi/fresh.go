package httpapi

import (
	"context"
	"sync"
	"time"

	"reveille/infra/state"
)

const (
	lookEvery = 2 * time.Millisecond // least time between two reads for listings
	lookShare = 5                    // a slower read is followed by a pause of this many times its duration, at most lookMost
	lookMost  = 100 * time.Millisecond
	freshWait = 300 * time.Millisecond // longest a listing waits for the store
)

// reader reads snapshots for listings, one at a time and not too often, so that listings, some of which need no key,
// cannot overload the store.
type reader struct {
	mu    sync.Mutex // held over a read
	began time.Time  // of the last read
	next  time.Time  // earliest start of the next
	err   error      // of the last read
}

// freshSnapshot returns a snapshot for a listing. If the store answers, it was read after the listing was requested, so that a
// client sees the effects of its own calls; otherwise it is the mirror's copy, with the error. Listings requested during a read
// share the next one.
func (s *Server) freshSnapshot() (*state.Snapshot, error) {
	asked := time.Now()
	s.reader.mu.Lock()
	defer s.reader.mu.Unlock()
	if s.reader.began.After(asked) {
		return s.cfg.Mirror.Snapshot(), s.reader.err
	}
	time.Sleep(time.Until(s.reader.next))
	s.reader.began = time.Now()
	snap, err := s.refreshSnapshot(context.Background())
	s.reader.next = time.Now().Add(max(lookEvery, min(lookMost, lookShare*time.Since(s.reader.began))))
	s.reader.err = err
	return snap, err
}

// refreshSnapshot reads a new snapshot, which includes the caller's changes.
func (s *Server) refreshSnapshot(ctx context.Context) (*state.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, freshWait)
	defer cancel()
	snap, err := s.cfg.Mirror.Refresh(ctx)
	if err != nil {
		return s.cfg.Mirror.Snapshot(), err
	}
	return snap, nil
}

// stateOf returns a model's state in the pool by the API's name for it.
func (s *Server) stateOf(model string) string {
	state := "unloaded"
	for _, h := range s.cfg.Mirror.Snapshot().Hosts {
		if m := h.Models[model]; m != nil {
			if h.Loaded(model) != nil {
				return "loaded"
			}
			state = string(m.State)
		}
		for _, t := range h.Queue {
			if t.Model == model && t.Kind == "load" && state == "unloaded" {
				state = ticketState(h, t)
			}
		}
	}
	return state
}
