package pressure

import (
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Limit is how many bytes this process may use, 0 for no limit: GOMEMLIMIT where it is set, else what its control group
// allows.
func Limit() int64 {
	if soft := debug.SetMemoryLimit(-1); limitFromEnv() && soft < math.MaxInt64 {
		return soft
	}
	limit, err := memlimit.FromCgroup()
	if err != nil || limit > unlimited {
		return 0
	}
	return int64(limit)
}

// unlimited is less than the value that cgroup v1 reports without a limit.
const unlimited = 1 << 60

// ApplyToRuntime makes the collector work harder before a limit is reached than levelAt gives anything up, unless
// GOMEMLIMIT has told it a limit already. It changes the whole process.
func ApplyToRuntime(limit int64) {
	if limit > 0 && !limitFromEnv() {
		debug.SetMemoryLimit(limit / 100 * collectAt)
	}
}

// limitFromEnv reports whether the collector knows its limit from the environment.
func limitFromEnv() bool { return os.Getenv("GOMEMLIMIT") != "" }

// collectAt is the share of the limit, in per cent, that the collector keeps the process below if it can.
const collectAt = 90
