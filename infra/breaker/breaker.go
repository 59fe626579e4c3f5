// Package breaker spares callers the wait for a store that does not answer.
package breaker

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	Failures = 5           // in a row before calls are refused at once
	probe    = time.Second // ± 20 %: while open, one call per interval is let through
)

// A Breaker refuses calls at once after Failures failures in a row, until one succeeds. The zero value is closed. It is
// safe for concurrent use.
type Breaker struct {
	mu       sync.Mutex
	failures int
	probeAt  time.Time
}

// Allow reports whether a call may go out. While the breaker is open, one call per probe interval may.
func (b *Breaker) Allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < Failures {
		return true
	}
	now := time.Now()
	if now.Before(b.probeAt) {
		return false
	}
	b.probeAt = now.Add(time.Duration(float64(probe) * (0.8 + 0.4*rand.Float64())))
	return true
}

// Record records a call's outcome and reports whether the breaker opened or closed by it.
func (b *Breaker) Record(failed bool) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !failed {
		changed = b.failures >= Failures
		b.failures = 0
		return changed
	}
	if b.failures++; b.failures != Failures {
		return false
	}
	b.probeAt = time.Now().Add(probe)
	return true
}

// Open reports whether calls are refused.
func (b *Breaker) Open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures >= Failures
}
