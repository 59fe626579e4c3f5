package batch

import (
	"fmt"
	"sync"

	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/meter"
)

// Meters are the metrics of a runner's queues, by model. Create them with NewMeters, once per set. They are safe for
// concurrent use.
type Meters struct {
	set *metrics.Set

	mu     sync.Mutex // guards the fields below and the queues of each model's meters
	models map[string]*modelMeters
}

// NewMeters creates meters that register a model's metrics in set when its first queue is created.
func NewMeters(set *metrics.Set) *Meters {
	return &Meters{set: set, models: map[string]*modelMeters{}}
}

// modelMeters are one model's metrics. They outlive its queues: counters continue when the model is loaded again.
type modelMeters struct {
	batches, sequences, oomRetries, oomFailures *metrics.Counter
	tokens, fill, context, wait, oomTokens      *metrics.PrometheusHistogram

	queues map[*Batcher]struct{}
}

// add returns the metrics of a queue's model, whose gauges include the queue until remove.
func (m *Meters) add(model string, b *Batcher) *modelMeters {
	m.mu.Lock()
	defer m.mu.Unlock()
	perModel := m.models[model]
	if perModel == nil {
		perModel = m.newModelMeters(model)
		m.models[model] = perModel
	}
	perModel.queues[b] = struct{}{}
	return perModel
}

func (m *Meters) remove(b *Batcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(b.meters.queues, b)
}

func (m *Meters) newModelMeters(model string) *modelMeters {
	name := func(s string) string { return fmt.Sprintf("reveille_runner_embedding_%s{model=%q}", s, model) }
	perModel := &modelMeters{
		batches:     m.set.NewCounter(name("batches_total")),
		sequences:   m.set.NewCounter(name("sequences_total")),
		tokens:      m.set.NewPrometheusHistogramExt(name("batch_tokens"), meter.Tokens),
		fill:        m.set.NewPrometheusHistogramExt(name("n_batch_utilisation"), meter.Shares),
		context:     m.set.NewPrometheusHistogramExt(name("context_utilisation"), meter.Shares),
		wait:        m.set.NewPrometheusHistogramExt(name("queue_wait_seconds"), meter.Seconds),
		oomRetries:  m.set.NewCounter(name("oom_retries_total")),
		oomFailures: m.set.NewCounter(name("oom_failures_total")),
		oomTokens:   m.set.NewPrometheusHistogramExt(name("oom_retry_tokens"), meter.Tokens),
		queues:      map[*Batcher]struct{}{},
	}
	gauge := func(family string, value func(p *packer) int) {
		m.set.NewGauge(name(family), func() float64 {
			m.mu.Lock()
			defer m.mu.Unlock()
			total := 0
			for b := range perModel.queues {
				b.mu.Lock()
				total += value(b.packer)
				b.mu.Unlock()
			}
			return float64(total)
		})
	}
	gauge("pending_tokens", func(p *packer) int { return p.pending })
	gauge("in_flight_tokens", func(p *packer) int { return p.inFlightTokens })
	gauge("active_batches", func(p *packer) int { return p.activeBatches })
	gauge("batch_ceiling_tokens", func(p *packer) int { return p.ceiling.tokens })
	return perModel
}

// formed counts a batch.
func (m *modelMeters) formed(b *Batch, l Limits) {
	m.batches.Inc()
	m.sequences.Add(len(b.Items))
	m.tokens.Update(float64(b.Tokens))
	m.fill.Update(float64(b.Tokens) / float64(l.NBatch))
	m.context.Update(float64(b.OtherTokens+b.Tokens) / float64(l.Context))
}

// retried counts a smaller call made because a larger one failed.
func (m *modelMeters) retried(tokens int) {
	m.oomRetries.Inc()
	m.oomTokens.Update(float64(tokens))
}
