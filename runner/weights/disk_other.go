//go:build !linux

package weights

import (
	"math"
	"os"
)

// freeBytes: not known here; a full disk is noticed by the write that fails.
func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

func allocate(f *os.File, size int64) error { return f.Truncate(size) }

func isFull(error) bool { return false }
