package httpapi

import (
	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/meter"
	"reveille/runner/host"
)

// meters are the runner's metrics.
type meters struct {
	requests, refused, refusedAuth, sentBack, broken *metrics.Counter
	badReplyRestarts, noAnswerRestarts               *metrics.Counter // engines that the watchdog ended
	open, waiting                                    *metrics.Gauge
	seconds                                          *metrics.PrometheusHistogram
}

func newMeters(set *metrics.Set, h *host.Host) meters {
	count := func(name string, f func(host.Stats) int) {
		set.NewGauge(name, func() float64 { return float64(f(h.Stats())) })
	}
	count("reveille_runner_loads_total", func(s host.Stats) int { return s.Loads })
	count("reveille_runner_load_failures_total", func(s host.Stats) int { return s.LoadFailures })
	count("reveille_runner_evictions_total", func(s host.Stats) int { return s.Evictions })
	count("reveille_runner_clears_total", func(s host.Stats) int { return s.Clears })
	count("reveille_runner_engine_crashes_total", func(s host.Stats) int { return s.Crashes })
	set.NewGauge("reveille_runner_models_loaded", func() float64 { return float64(len(h.View().Models)) })
	memory := func(name string, f func(host.ModelView) int64) {
		set.NewGauge(name, func() (sum float64) {
			for _, m := range h.View().Models {
				if m.Plan.Measured > 0 {
					sum += float64(f(m))
				}
			}
			return sum
		})
	}
	memory("reveille_runner_models_planned_bytes", func(m host.ModelView) int64 { return m.Memory })
	memory("reveille_runner_models_measured_bytes", func(m host.ModelView) int64 { return m.Plan.Measured })
	return meters{
		requests:         set.NewCounter("reveille_runner_requests_total"),
		refused:          set.NewCounter(`reveille_runner_refused_total{reason="not_loaded"}`),
		refusedAuth:      set.NewCounter(`reveille_runner_refused_total{reason="auth"}`),
		sentBack:         set.NewCounter(`reveille_runner_refused_total{reason="sent_back"}`),
		broken:           set.NewCounter("reveille_runner_broken_total"),
		badReplyRestarts: set.NewCounter(`reveille_runner_engine_restarts_total{reason="bad_reply"}`),
		noAnswerRestarts: set.NewCounter(`reveille_runner_engine_restarts_total{reason="no_answer"}`),
		open:             set.NewGauge("reveille_runner_requests_open", nil),
		waiting:          set.NewGauge("reveille_runner_requests_waiting", nil),
		seconds:          set.NewPrometheusHistogramExt("reveille_runner_request_seconds", meter.Seconds),
	}
}
