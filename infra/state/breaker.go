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
	breakerFailures = 5               // in a row, before calls are refused at once
	breakerProbe    = 1 * time.Second // ± 20 %: one call is let through this often while open
	corruptEvery    = time.Minute     // at most one log line about a corrupt store in this time
)

// breaker refuses calls at once while Redis is away, so that no call waits for a time-out that is certain.
// It logs one line a change of state. Safe for concurrent use.
type breaker struct {
	log *slog.Logger

	mu       sync.Mutex
	failures int
	open     bool
	probeAt  time.Time
	told     time.Time // when the log was last told of a corrupt store
}

// allow reports whether a call may go out. While open, one call each probe interval does.
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

// record learns a call's outcome and returns the error that callers see: nil, redis.Nil, or one that is ErrUnavailable and,
// where Redis took the call and failed in it, ErrCorrupt.
func (b *breaker) record(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && unavailable(err) {
		b.failures++
		if !b.open && b.failures >= breakerFailures {
			b.open, b.probeAt = true, time.Now().Add(breakerProbe)
			b.log.Warn("state store is away", "error", err)
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

// corrupt is the error of a call that was answered with what nobody can use.
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

// unavailable tells a Redis that cannot take the call from one that answered it.
func unavailable(err error) bool {
	if errors.Is(err, redis.Nil) {
		return false
	}
	var re redis.Error
	if !errors.As(err, &re) {
		return true // time-outs, refused connections, an exhausted pool
	}
	for _, p := range []string{"READONLY", "OOM", "MISCONF", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS",
		"ERR max number of clients", "NOAUTH", "WRONGPASS", "NOPERM", "NOSCRIPT"} {
		if redis.HasErrorPrefix(err, p) {
			return true
		}
	}
	return false
}
