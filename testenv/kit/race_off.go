//go:build !race

package kit

import "time"

// Race says whether this binary was built with the race detector.
const Race = false

// Patience is the longest that a test waits for what must happen.
const Patience = 2 * time.Minute
