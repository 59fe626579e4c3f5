package batch

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/meter"
)

// Meters are the metrics of a runner's queues, by model. Create them with NewMeters, once per set. They are safe for
// concurrent use.
type Meters struct {
	set *metrics.Set

	mu     sync.Mutex
	models map[string]*meters
}

// NewMeters creates meters that register a model's metrics in set when its first queue is created.
func NewMeters(set *metrics.Set) *Meters {
	return &Meters{set: set, models: map[string]*meters{}}
}

// meters are one model's metrics. They outlive its queues: counters continue when the model is loaded again.
type meters struct {
	batches, sequences, oomRetries, oomFailures *metrics.Counter
	tokens, fill, context, wait, oomTokens      *meter.Histogram

	pending, inFlight, active, ceiling atomic.Int64 // totals of the model's queues
}

// of returns the metrics of a model.
func (m *Meters) of(model string) *meters {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.models[model]; known != nil {
		return known
	}
	name := func(s string) string { return fmt.Sprintf("%s{model=%q}", s, model) }
	of := &meters{
		batches:     m.set.NewCounter(name("reveille_runner_embedding_batches_total")),
		sequences:   m.set.NewCounter(name("reveille_runner_embedding_sequences_total")),
		tokens:      meter.NewHistogram(m.set, name("reveille_runner_embedding_batch_tokens"), meter.Tokens),
		fill:        meter.NewHistogram(m.set, name("reveille_runner_embedding_n_batch_utilisation"), meter.Shares),
		context:     meter.NewHistogram(m.set, name("reveille_runner_embedding_context_utilisation"), meter.Shares),
		wait:        meter.NewHistogram(m.set, name("reveille_runner_embedding_queue_wait_seconds"), meter.Seconds),
		oomRetries:  m.set.NewCounter(name("reveille_runner_embedding_oom_retries_total")),
		oomFailures: m.set.NewCounter(name("reveille_runner_embedding_oom_failures_total")),
		oomTokens:   meter.NewHistogram(m.set, name("reveille_runner_embedding_oom_retry_tokens"), meter.Tokens),
	}
	gauge := func(family string, v *atomic.Int64) {
		m.set.NewGauge(name(family), func() float64 { return float64(v.Load()) })
	}
	gauge("reveille_runner_embedding_pending_tokens", &of.pending)
	gauge("reveille_runner_embedding_in_flight_tokens", &of.inFlight)
	gauge("reveille_runner_embedding_active_batches", &of.active)
	gauge("reveille_runner_embedding_batch_ceiling_tokens", &of.ceiling)
	m.models[model] = of
	return of
}

// load is one queue's share of the gauges.
type load struct{ pending, inFlight, active, ceiling int }

func loadOf(f *packer) load {
	l := load{pending: f.Pending(), ceiling: f.Ceiling()}
	l.inFlight, l.active = f.InFlight()
	return l
}

// show moves the gauges from a queue's previous share to its current one.
func (m *meters) show(was, now load) load {
	for _, g := range [...]struct {
		v       *atomic.Int64
		was, is int
	}{
		{&m.pending, was.pending, now.pending}, {&m.inFlight, was.inFlight, now.inFlight}, {&m.active, was.active, now.active},
		{&m.ceiling, was.ceiling, now.ceiling},
	} {
		if g.was != g.is {
			g.v.Add(int64(g.is - g.was))
		}
	}
	return now
}

// formed counts a batch.
func (m *meters) formed(b *Batch, l Limits) {
	m.batches.Inc()
	m.sequences.Add(len(b.Items))
	m.tokens.Update(float64(b.Tokens))
	m.fill.Update(float64(b.Tokens) / float64(l.NBatch))
	m.context.Update(float64(b.InFlight+b.Tokens) / float64(l.Context))
}

// waited counts a request's time until its first batch.
func (m *meters) waited(d time.Duration) { m.wait.Update(d.Seconds()) }

// retried counts a smaller call made because a larger one failed.
func (m *meters) retried(tokens int) {
	m.oomRetries.Inc()
	m.oomTokens.Update(float64(tokens))
}

// exhausted counts a call that was too large and could not be made smaller.
func (m *meters) exhausted() { m.oomFailures.Inc() }
