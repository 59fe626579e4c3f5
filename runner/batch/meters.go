package batch

import (
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/meter"
)

// Meters are the metrics of all queues of a runner. Make them with NewMeters, once for a set.
type Meters struct {
	batches, sequences, oomRetries, oomFailures *metrics.Counter
	tokens, fill, context, wait, oomTokens      *meter.Histogram

	pending, inFlight, active atomic.Int64 // over all queues
}

// NewMeters registers the metrics in set.
func NewMeters(set *metrics.Set) *Meters {
	m := &Meters{
		batches:     set.NewCounter("reveille_runner_embedding_batches_total"),
		sequences:   set.NewCounter("reveille_runner_embedding_sequences_total"),
		tokens:      meter.NewHistogram(set, "reveille_runner_embedding_batch_tokens", meter.Tokens),
		fill:        meter.NewHistogram(set, "reveille_runner_embedding_n_batch_utilisation", meter.Shares),
		context:     meter.NewHistogram(set, "reveille_runner_embedding_context_utilisation", meter.Shares),
		wait:        meter.NewHistogram(set, "reveille_runner_embedding_queue_wait_seconds", meter.Seconds),
		oomRetries:  set.NewCounter("reveille_runner_embedding_oom_retries_total"),
		oomFailures: set.NewCounter("reveille_runner_embedding_oom_failures_total"),
		oomTokens:   meter.NewHistogram(set, "reveille_runner_embedding_oom_retry_tokens", meter.Tokens),
	}
	gauge := func(name string, v *atomic.Int64) {
		set.NewGauge(name, func() float64 { return float64(v.Load()) })
	}
	gauge("reveille_runner_embedding_pending_tokens", &m.pending)
	gauge("reveille_runner_embedding_in_flight_tokens", &m.inFlight)
	gauge("reveille_runner_embedding_active_batches", &m.active)
	return m
}

// discard are meters that nobody reads.
func discard() *Meters { return NewMeters(metrics.NewSet()) }

// load is what a queue holds.
type load struct{ pending, inFlight, active int }

// show brings the gauges from what they showed of a queue to what is the case.
func (m *Meters) show(was load, f *Former) load {
	now := load{pending: f.Pending()}
	now.inFlight, now.active = f.InFlight()
	for _, g := range [...]struct {
		v       *atomic.Int64
		was, is int
	}{{&m.pending, was.pending, now.pending}, {&m.inFlight, was.inFlight, now.inFlight}, {&m.active, was.active, now.active}} {
		if g.was != g.is {
			g.v.Add(int64(g.is - g.was))
		}
	}
	return now
}

// formed counts a batch.
func (m *Meters) formed(b *Batch, l Limits) {
	m.batches.Inc()
	m.sequences.Add(len(b.Items))
	m.tokens.Update(float64(b.Tokens))
	m.fill.Update(float64(b.Tokens) / float64(l.NBatch))
	m.context.Update(float64(b.InFlight+b.Tokens) / float64(l.Context))
}

// waited counts a request's time until its first batch.
func (m *Meters) waited(d time.Duration) { m.wait.Update(d.Seconds()) }

// retried counts a smaller call after one that was too large.
func (m *Meters) retried(tokens int) {
	m.oomRetries.Inc()
	m.oomTokens.Update(float64(tokens))
}

// exhausted counts a call that was too large and could not be made smaller.
func (m *Meters) exhausted() { m.oomFailures.Inc() }
