package conversations

import "github.com/VictoriaMetrics/metrics"

type meters struct {
	saved, restored, tokens, failed *metrics.Counter
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
		tokens: set.NewCounter(prefix + "restored_tokens_total"), failed: set.NewCounter(prefix + "failed_total"),
	}
}
