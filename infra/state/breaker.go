package state

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/breaker"
)

// corruptEvery is the least interval between two log lines about a corrupt store.
const corruptEvery = time.Minute

// guarded refuses calls at once while Redis is unreachable, so that no call waits for a certain timeout. It logs one
// line per change of state. It is safe for concurrent use.
type guarded struct {
	breaker.Breaker
	log *slog.Logger

	mu   sync.Mutex
	told time.Time // last log line about a corrupt store
}

// record records a call's outcome and returns the error for the caller: nil, redis.Nil, or an error that is
// ErrUnavailable. It is also ErrCorrupt if Redis accepted the call and failed in it.
func (b *guarded) record(err error) error {
	failed := err != nil && unavailable(err)
	switch changed := b.Record(failed); {
	case changed && failed:
		b.log.Warn("Redis does not answer", "error", err)
	case changed:
		b.log.Info("state store is back")
	}
	switch {
	case failed:
		return &unavailableError{err}
	case err == nil || errors.Is(err, redis.Nil):
		return err
	}
	return b.corrupt(err)
}

// corrupt returns the error for a call with an unusable answer.
func (b *guarded) corrupt(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.told) > corruptEvery {
		b.told = time.Now()
		b.log.Error("state store is corrupt: delete the pool's keys that have a wrong type or content", "error", err)
	}
	return &unavailableError{fmt.Errorf("%w: %w", ErrCorrupt, err)}
}

type unavailableError struct{ cause error }

func (e *unavailableError) Error() string   { return ErrUnavailable.Error() + ": " + e.cause.Error() }
func (e *unavailableError) Unwrap() []error { return []error{ErrUnavailable, e.cause} }

// unavailable reports whether err means that Redis could not take the call, rather than answered it.
func unavailable(err error) bool {
	if errors.Is(err, redis.Nil) {
		return false
	}
	var re redis.Error
	if !errors.As(err, &re) {
		return true // timeouts, refused connections, an exhausted pool
	}
	for _, p := range []string{"READONLY", "OOM", "MISCONF", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS",
		"ERR max number of clients", "NOAUTH", "WRONGPASS", "NOPERM", "NOSCRIPT"} {
		if redis.HasErrorPrefix(err, p) {
			return true
		}
	}
	return false
}
