//go:build race

package kit

import "time"

// Race says whether this binary was built with the race detector.
const Race = true

// Patience is the longest that a test waits for what must happen.
const Patience = 5 * time.Minute // programs are some ten times slower
