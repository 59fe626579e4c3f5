// Package meter holds what the programs' metrics share: the bounds of histograms, and the sum of several processes'
// metrics.
package meter

// Prefixes of the names of a runner's metrics, and of their sums over the pool.
const (
	RunnerPrefix = "reveille_runner_"
	PoolPrefix   = "reveille_pool_"
)

// Bounds of histograms: the upper ends of buckets, in the unit of the metric's name.
var (
	Seconds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900}
	Tokens  = []float64{1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536}
	Shares  = []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1}
)
