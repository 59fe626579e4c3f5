package conversations

import (
	"errors"
	"time"
)

var errClosed = errors.New("the store is closed")

// Forgetting is the outcome of Store.Forget.
type Forgetting struct {
	Conversations int // saved conversations that are removed

	at   uint64
	done chan struct{} // closed once their files are removed
	err  error         // set before
}

// Wait waits until the files are removed. It returns an error if one of them could not be removed.
func (f *Forgetting) Wait() error {
	if f == nil {
		return nil
	}
	<-f.done
	return f.err
}

// Forget removes what engines computed for a model's conversations before at, a time of the pool's clock
// (state.ForgetConversations). An empty model stands for all models. From now on none of it is used; the files are
// removed in the background. Engines prepared before at save nothing, and what is being saved or staged is dropped.
// Calls with the same or an earlier time return the outcome of the first. A nil store does nothing.
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
	var gone []*entry
	for _, e := range s.entries {
		if s.isForgottenLocked(e) {
			gone = s.dropLocked(gone, e)
		}
	}
	f.Conversations = len(gone)
	if s.closed {
		f.err = errClosed
		close(f.done)
		return f
	}
	s.work.Go(func() {
		defer close(f.done)
		f.err = s.unlink(gone)
	})
	return f
}

// lastForget returns the time of the last Forget of a model's conversations, 0 for none. A Forget more than two
// lifetimes of a conversation ago does not count, because everything from before it has expired.
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

// isForgottenLocked reports whether an entry is from before its model's conversations were forgotten.
func (s *Store) isForgottenLocked(e *entry) bool { return e.Forgotten < s.lastForgetLocked(e.model()) }
