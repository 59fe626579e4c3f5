// Package kit has what the tests of many packages need.
package kit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Eventually asks ok again and again until it holds, and fails the test if that takes longer than [Patience].
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, Patience, what, ok)
}

// Within is [Eventually] with a bound of its own.
func Within(t testing.TB, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	if !holds(bound, ok) {
		t.Fatalf("not within %v: %s", bound, what)
	}
}

// Becomes is [Eventually] for a value: it waits until look returns want, or what prints as want does.
func Becomes[T any](t testing.TB, what string, want T, look func() T) {
	t.Helper()
	var got string
	if !holds(Patience, func() bool { got = fmt.Sprint(look()); return got == fmt.Sprint(want) }) {
		t.Fatalf("%s: %s after %v, want %v", what, got, Patience, want)
	}
}

// holds waits until ok holds, and reports whether it did within the bound.
func holds(bound time.Duration, ok func() bool) bool {
	pause := time.Millisecond
	for end := time.Now().Add(bound); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			return false
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
	return true
}

// Golden compares got with the file at path, or writes got there on update.
func Golden(t testing.TB, update bool, path, got string) {
	t.Helper()
	if update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Errorf("%s: %v\ngot\n%s\nwant\n%s", path, err, got, want)
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
