package conversations

import (
	"errors"
	"time"
)

var errClosed = errors.New("the runner ends")

// Forgetting is the outcome of a call to Store.Forget.
type Forgetting struct {
	Conversations int // that were saved

	at   uint64
	done chan struct{} // closed once their files are removed
	err  error         // set before
}

// Wait waits until the files are removed. It returns an error if one could not be.
func (f *Forgetting) Wait() error {
	if f == nil {
		return nil
	}
	<-f.done
	return f.err
}

// Forget removes what engines computed for a model's conversations before a time of the pool
// (state.ForgetConversations), "" for those of all models. Nothing of it is used from now on; the files go in the
// background. What engines that were prepared before hold is not saved, and what is being saved or staged is dropped.
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
	var gone []*entry
	for _, e := range s.entries {
		if s.forgottenLocked(e) {
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
