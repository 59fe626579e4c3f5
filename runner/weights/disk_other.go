//go:build !linux

package weights

import "math"

// freeBytes: not known here; a full disk is noticed by the write that fails.
func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

func isFull(error) bool { return false }
