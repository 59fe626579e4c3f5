package models

import (
	"context"
	"errors"
	"sync"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/infra/policy"
	"reveille/infra/state"
)

const (
	lookEvery = 2 * time.Millisecond // minimum time between two reads for listings
	lookShare = 5                    // a slower read is followed by a pause of this many times its duration, at most lookMost
	lookMost  = 100 * time.Millisecond
)

// FreshWait is how long a listing waits for the store at most.
const FreshWait = 300 * time.Millisecond

// reader reads snapshots for listings, one at a time and not too often, so that listings, some of them without a key,
// cannot overload the store.
type reader struct {
	mu    sync.Mutex // held over a read
	began time.Time  // of the last read
	next  time.Time  // earliest start of the next
	err   error      // of the last read
}

// Fresh returns a snapshot for a listing. If the store responds, it was read after the listing was requested, so that a
// client sees the effects of its own calls; otherwise it is the mirror's copy, with the error. Listings requested
// during a read share the next one.
func (d *Registry) Fresh() (*state.Snapshot, error) {
	asked := time.Now()
	d.reader.mu.Lock()
	defer d.reader.mu.Unlock()
	if d.reader.began.After(asked) {
		return d.cfg.Mirror.Snapshot(), d.reader.err
	}
	time.Sleep(time.Until(d.reader.next))
	d.reader.began = time.Now()
	snap, err := d.Refresh(context.Background())
	d.reader.next = time.Now().Add(max(lookEvery, min(lookMost, lookShare*time.Since(d.reader.began))))
	d.reader.err = err
	return snap, err
}

// Refresh reads a new snapshot, which includes the caller's changes.
func (d *Registry) Refresh(ctx context.Context) (*state.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, FreshWait)
	defer cancel()
	snap, err := d.cfg.Mirror.Refresh(ctx)
	if err != nil {
		return d.cfg.Mirror.Snapshot(), err
	}
	return snap, nil
}

// StateOf returns a model's state in the pool by the API's name for it.
func (d *Registry) StateOf(model string) string { return stateIn(d.cfg.Mirror.Snapshot(), model) }

func stateIn(s *state.Snapshot, model string) string {
	state := "unloaded"
	for _, h := range s.Hosts {
		if h.Loaded(model) != nil {
			return "loaded"
		}
		if m := h.Models[model]; m != nil && h.State != policy.Lost {
			state = string(m.State)
		}
		for _, t := range h.Queue {
			if t.Model == model && t.Kind == "load" && state == "unloaded" {
				state = scheduling.StageOf(h, t)
			}
		}
	}
	return state
}

// StoreError returns the client's error when the pool's state could not be read or written.
func StoreError(err error) error {
	if errors.Is(err, state.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return api.New(api.StateUnavailable, "The pool's state is not available at the moment; try again.").WithCause(err)
	}
	return api.As(err)
}
