package conversations

import "github.com/VictoriaMetrics/metrics"

// meters are the package's metrics.
type meters struct {
	saved, restored, tokens          *metrics.Counter
	seconds                          *metrics.FloatCounter
	unsaved, full, damaged, rejected *metrics.Counter
	forgotten, worthless             *metrics.Counter
}

func newMeters(set *metrics.Set, s *Store) meters {
	set.NewGauge("reveille_runner_conversations_bytes", func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(s.total)
	})
	total := func(name string) *metrics.Counter {
		return set.NewCounter("reveille_runner_conversations_" + name + "_total")
	}
	refused := func(reason string) *metrics.Counter {
		return set.NewCounter(`reveille_runner_conversations_refused_total{reason="` + reason + `"}`)
	}
	return meters{
		saved: total("saved"), restored: total("restored"), tokens: total("restored_tokens"),
		seconds: set.NewFloatCounter("reveille_runner_conversations_saved_seconds_total"),
		unsaved: refused("engine_did_not_save"), full: refused("not_stored"),
		damaged: refused("damaged"), rejected: refused("engine_did_not_restore"),
		forgotten: refused("forgotten"), worthless: refused("not_worth_it"),
	}
}
