package weights

import (
	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/meter"
)

// meters count what is pulled.
type meters struct {
	bytes    *metrics.Counter // written, also by pulls that fail later
	failures *metrics.Counter // pulls that failed while callers waited
	seconds  *meter.Histogram // of pulls that succeeded
}

// pullSeconds are the bounds of the time that pulls take.
var pullSeconds = []float64{1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 10800}

func newMeters(set *metrics.Set, c *Cache) meters {
	set.NewGauge("reveille_runner_weights_bytes", func() float64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return float64(c.total)
	})
	return meters{
		bytes: set.NewCounter("reveille_runner_pull_bytes_total"), failures: set.NewCounter("reveille_runner_pull_failures_total"),
		seconds: meter.NewHistogram(set, "reveille_runner_pull_seconds", pullSeconds),
	}
}
