package conversations

import (
	"context"
	"errors"
	"time"
)

// forgetTimeout bounds how long removing objects from the bucket may take.
const forgetTimeout = 5 * time.Second

var errClosed = errors.New("the runner ends")

// Forgetting is the outcome of a call to Store.Forget.
type Forgetting struct {
	Conversations int // removed from the disk

	at   uint64
	done chan struct{} // closed once the bucket has been looked through
	err  error         // set before
}

// Wait waits until the bucket has been looked through. It returns an error if anything could not be removed.
func (f *Forgetting) Wait() error {
	if f == nil {
		return nil
	}
	<-f.done
	return f.err
}

// Forget removes what engines computed for a model's conversations before a time of the pool
// (state.ForgetConversations), "" for those of all models: from the disk at once, from the bucket in the background.
// What engines that were prepared before hold is not saved, and what is being saved, fetched or staged is dropped.
// Calls with the same or an earlier time return what came of the first. A nil store has nothing.
func (s *Store) Forget(model string, at uint64) *Forgetting {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.forgettings[model]; f != nil && f.at >= at {
		return f
	}
	f := &Forgetting{at: at, done: make(chan struct{})}
	s.forgettings[model] = f
	for _, e := range s.entries {
		if s.forgottenLocked(e) {
			f.err = errors.Join(f.err, s.removeLocked(e))
			f.Conversations++
		}
	}
	if s.closed {
		f.err = errors.Join(f.err, errClosed)
		close(f.done)
		return f
	}
	s.work.Go(func() {
		defer close(f.done)
		ctx, cancel := context.WithTimeout(s.life, forgetTimeout)
		defer cancel()
		if err := s.bucket.forget(ctx, model, at); err != nil {
			s.cfg.Log.Warn("forgotten conversations stay in the bucket", "model", model, "error", err)
			f.err = errors.Join(f.err, err)
		}
	})
	return f
}

// lastForget returns the time of the last Forget of a model's conversations, 0 for none. Nothing from before one that
// is two lifetimes of a conversation ago is left.
func (s *Store) lastForget(model string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastForgetLocked(model)
}

func (s *Store) lastForgetLocked(model string) (at uint64) {
	for _, f := range []*Forgetting{s.forgettings[model], s.forgettings[""]} {
		if f != nil && time.Since(time.UnixMicro(int64(f.at))) < 2*s.cfg.TTL {
			at = max(at, f.at)
		}
	}
	return at
}

// forgets reports whether an entry is from before its model's conversations were forgotten.
func (s *Store) forgets(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forgottenLocked(e)
}

func (s *Store) forgottenLocked(e *entry) bool { return e.Forgotten < s.lastForgetLocked(e.model()) }
