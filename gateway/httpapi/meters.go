package httpapi

import (
	"strconv"
	"sync"

	"github.com/VictoriaMetrics/metrics"

	"reveille/gateway/pressure"
	"reveille/gateway/scheduling"
	"reveille/infra/meter"
	"reveille/infra/state"
)

// meters are the gateway's metrics. Their labels come only from the route table and from statuses.
type meters struct {
	seconds      *metrics.PrometheusHistogram
	streamErrors *metrics.Counter
	panics       *metrics.Counter
	broken       *metrics.Counter
	responses    *responseCounters

	droppedFields *metrics.Counter

	background        *metrics.Counter
	backgroundRefused *metrics.Counter
}

func newMeters(set *metrics.Set, gate *scheduling.Gate, mirror *state.Mirror, mem *pressure.Gauge) meters {
	set.NewGauge("reveille_gateway_memory_used_bytes", func() float64 { used, _ := mem.Bytes(); return float64(used) })
	set.NewGauge("reveille_gateway_memory_limit_bytes", func() float64 { _, limit := mem.Bytes(); return float64(limit) })
	set.NewGauge("reveille_gateway_swaps_total", func() float64 { return float64(gate.Swaps()) })
	set.NewGauge("reveille_gateway_hosts_power_off_pending", func() float64 {
		n := 0
		for _, h := range mirror.Snapshot().Hosts {
			if h.PowerOffPending() {
				n++
			}
		}
		return float64(n)
	})
	return meters{
		seconds:      set.NewPrometheusHistogramExt("reveille_gateway_request_seconds", meter.Seconds),
		streamErrors: set.NewCounter("reveille_gateway_stream_errors_total"), broken: set.NewCounter("reveille_gateway_answers_broken_total"),
		panics: set.NewCounter("reveille_gateway_panics_total"), responses: &responseCounters{set: set},
		droppedFields: set.NewCounter("reveille_gateway_body_fields_dropped_total"),
		background:    set.NewCounter("reveille_gateway_background_requests_total"), backgroundRefused: set.NewCounter("reveille_gateway_background_refused_total"),
	}
}

// countResponse counts a response by route and status.
func (m meters) countResponse(route string, status int) {
	m.responses.counter(responseKey{route, status}).Inc()
}

type responseKey struct {
	route  string
	status int
}

// responseCounters are the counters of responses, made on first use.
type responseCounters struct {
	set *metrics.Set
	all sync.Map // *metrics.Counter by responseKey
}

func (a *responseCounters) counter(key responseKey) *metrics.Counter {
	if c, known := a.all.Load(key); known {
		return c.(*metrics.Counter)
	}
	c := a.set.GetOrCreateCounter(`reveille_gateway_answers_total{route="` + key.route + `",status="` + strconv.Itoa(key.status) + `"}`)
	a.all.Store(key, c)
	return c
}
