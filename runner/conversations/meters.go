package conversations

import "github.com/VictoriaMetrics/metrics"

type meters struct {
	saved, restored, tokens            *metrics.Counter
	seconds                            *metrics.FloatCounter
	unsaved, full, damaged, rejected   *metrics.Counter
	fetched, unfetched, unused, notPut *metrics.Counter
}

func newMeters(set *metrics.Set, s *Store) meters {
	const prefix = "reveille_runner_conversations_"
	set.NewGauge(prefix+"bytes", func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(s.total)
	})
	return meters{
		saved: set.NewCounter(prefix + "saved_total"), restored: set.NewCounter(prefix + "restored_total"),
		tokens: set.NewCounter(prefix + "restored_tokens_total"), seconds: set.NewFloatCounter(prefix + "saved_seconds_total"),
		unsaved: set.NewCounter(prefix + `refused_total{reason="engine_did_not_save"}`), full: set.NewCounter(prefix + `refused_total{reason="not_stored"}`),
		fetched: set.NewCounter(prefix + "fetched_total"), unfetched: set.NewCounter(prefix + `refused_total{reason="not_fetched"}`),
		damaged: set.NewCounter(prefix + `refused_total{reason="damaged"}`), rejected: set.NewCounter(prefix + `refused_total{reason="engine_did_not_restore"}`),
		notPut: set.NewCounter(prefix + `refused_total{reason="not_in_bucket"}`),
		unused: set.NewCounter(prefix + `refused_total{reason="engine_did_not_reuse"}`),
	}
}
