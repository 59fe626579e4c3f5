package conversations

import "github.com/VictoriaMetrics/metrics"

type meters struct {
	saved, restored, tokens            *metrics.Counter
	seconds                            *metrics.FloatCounter
	unsaved, full, damaged, rejected   *metrics.Counter
	fetched, unfetched, unused, notPut *metrics.Counter
	forgotten, worthless               *metrics.Counter
}

func newMeters(set *metrics.Set, s *Store) meters {
	set.NewGauge("reveille_runner_conversations_bytes", func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(s.total)
	})
	return meters{
		saved: set.NewCounter("reveille_runner_conversations_saved_total"), restored: set.NewCounter("reveille_runner_conversations_restored_total"),
		tokens: set.NewCounter("reveille_runner_conversations_restored_tokens_total"), seconds: set.NewFloatCounter("reveille_runner_conversations_saved_seconds_total"),
		unsaved: set.NewCounter(`reveille_runner_conversations_refused_total{reason="engine_did_not_save"}`), full: set.NewCounter(`reveille_runner_conversations_refused_total{reason="not_stored"}`),
		fetched: set.NewCounter("reveille_runner_conversations_fetched_total"), unfetched: set.NewCounter(`reveille_runner_conversations_refused_total{reason="not_fetched"}`),
		damaged: set.NewCounter(`reveille_runner_conversations_refused_total{reason="damaged"}`), rejected: set.NewCounter(`reveille_runner_conversations_refused_total{reason="engine_did_not_restore"}`),
		notPut:    set.NewCounter(`reveille_runner_conversations_refused_total{reason="not_in_bucket"}`),
		forgotten: set.NewCounter(`reveille_runner_conversations_refused_total{reason="forgotten"}`),
		worthless: set.NewCounter(`reveille_runner_conversations_refused_total{reason="not_worth_it"}`),
		unused:    set.NewCounter(`reveille_runner_conversations_refused_total{reason="engine_did_not_reuse"}`),
	}
}
