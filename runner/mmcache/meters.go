package mmcache

import "github.com/VictoriaMetrics/metrics"

// A reason is why an entry or a message was refused.
type reason int

const (
	reasonSize     reason = iota // larger than a limit: an entry, or the media of a look-up
	reasonInvalid                // truncated, modified, of another shape or pool
	reasonQuota                  // the pool's share of Redis is full
	reasonQueue                  // too many queued writes
	reasonIdentity               // the engine's encoder, or the tenant of the request, is unknown
	reasonProtocol               // a malformed message, or an identity that the engine was not given or does not lead
	reasons
)

// String returns the reason as a metric label.
func (r reason) String() string {
	return [...]string{"size", "invalid", "quota", "queue", "identity", "protocol"}[r]
}

// A tier is where a hit was found.
type tier int

const (
	tierMemory tier = iota // in this process
	tierRedis
	tiers
)

// meters count the cache's work for all models together.
type meters struct {
	lookups, misses, stores              *metrics.Counter
	hits                                 [tiers]*metrics.Counter
	redisRead, redisWritten, redisErrors *metrics.Counter
	saved                                *metrics.FloatCounter
	refused                              [reasons]*metrics.Counter
}

func newMeters(set *metrics.Set, l1 *lru) *meters {
	m := &meters{
		lookups: set.NewCounter("reveille_runner_mm_lookups_total"),
		hits: [...]*metrics.Counter{
			tierMemory: set.NewCounter(`reveille_runner_mm_hits_total{tier="l1"}`), tierRedis: set.NewCounter(`reveille_runner_mm_hits_total{tier="l2"}`),
		},
		misses:       set.NewCounter("reveille_runner_mm_misses_total"),
		stores:       set.NewCounter("reveille_runner_mm_stores_total"),
		redisRead:    set.NewCounter("reveille_runner_mm_redis_read_bytes_total"),
		redisWritten: set.NewCounter("reveille_runner_mm_redis_written_bytes_total"),
		redisErrors:  set.NewCounter("reveille_runner_mm_redis_errors_total"),
		saved:        set.NewFloatCounter("reveille_runner_mm_saved_seconds_total"),
	}
	for r := range reasons {
		m.refused[r] = set.NewCounter(`reveille_runner_mm_refused_total{reason="` + r.String() + `"}`)
	}
	set.NewGauge("reveille_runner_mm_l1_bytes", func() float64 { _, b := l1.size(); return float64(b) })
	set.NewGauge("reveille_runner_mm_l1_entries", func() float64 { n, _ := l1.size(); return float64(n) })
	return m
}
