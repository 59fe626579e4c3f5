// Package kit has what the tests of many packages need.
package kit

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Patience is the longest that a test waits for what must happen.
const Patience = time.Minute

// Eventually asks ok again and again until it holds, and fails the test if that takes longer than [Patience].
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, Patience, what, ok)
}

// Within is [Eventually] with a bound of its own.
func Within(t testing.TB, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	pause := time.Millisecond
	for end := time.Now().Add(bound); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", bound, what)
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// Buffer keeps what is written to it, such as a log. It is safe for concurrent use.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
