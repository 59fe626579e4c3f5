package state

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	breakerFailures = 5               // failures in a row before calls are refused at once
	breakerProbe    = 1 * time.Second // ± 20 %: while open, one call per interval is let through
	corruptEvery    = time.Minute     // at most one log line about a corrupt store per interval
)

// breaker refuses calls at once while Redis is unreachable, so that no call waits for a certain timeout. It logs one
// line per change of state. It is safe for concurrent use.
type breaker struct {
	log *slog.Logger

	mu       sync.Mutex
	failures int
	open     bool
	probeAt  time.Time
	told     time.Time // last log line about a corrupt store
}

// allow reports whether a call may go out. While the breaker is open, one call per probe interval may.
func (b *breaker) allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return true
	}
	now := time.Now()
	if now.Before(b.probeAt) {
		return false
	}
	b.probeAt = now.Add(time.Duration(float64(breakerProbe) * (0.8 + 0.4*rand.Float64())))
	return true
}

// record records a call's outcome and returns the error for the caller: nil, redis.Nil, or an error that is
// ErrUnavailable. It is also ErrCorrupt if Redis accepted the call and failed in it.
func (b *breaker) record(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && unavailable(err) {
		b.failures++
		if !b.open && b.failures >= breakerFailures {
			b.open, b.probeAt = true, time.Now().Add(breakerProbe)
			b.log.Warn("Redis does not answer", "error", err)
		}
		return &unavailableError{err}
	}
	if b.open {
		b.log.Info("state store is back")
	}
	b.failures, b.open = 0, false
	if err == nil || errors.Is(err, redis.Nil) {
		return err
	}
	return b.corruptLocked(err)
}

// corrupt returns the error for a call with an unusable answer.
func (b *breaker) corrupt(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.corruptLocked(err)
}

func (b *breaker) corruptLocked(err error) error {
	if time.Since(b.told) > corruptEvery {
		b.told = time.Now()
		b.log.Error("state store is corrupt: delete the pool's keys that have a wrong type or content", "error", err)
	}
	return &unavailableError{fmt.Errorf("%w: %w", ErrCorrupt, err)}
}

// up reports whether the breaker is closed.
func (b *breaker) up() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.open
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
