//go:build race

package kit

// Race says whether this binary was built with the race detector.
const Race = true
