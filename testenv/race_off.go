//go:build !race

package testenv

// raceEnabled says whether this binary, and so those built by it, has the race detector.
const raceEnabled = false
