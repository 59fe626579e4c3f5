package meter

import (
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metrics"
)

func TestExpose(t *testing.T) {
	set := metrics.NewSet()
	set.NewCounter(`reveille_runner_refused_total{reason="auth"}`).Inc()
	set.NewCounter(`reveille_runner_refused_total{reason="x"}`)
	set.NewGauge("reveille_runner_requests_open", func() float64 { return 2 })
	NewHistogram(set, `reveille_runner_request_seconds{model="a b"}`, []float64{1}).Update(0.5)
	NewHistogram(set, `reveille_runner_request_seconds{model="c"}`, []float64{1})
	var b strings.Builder
	set.WritePrometheus(&b)
	text := b.String() + "# a comment\n\ngo_cgo_calls_count 1\ngo_gc_duration_seconds{quantile=\"0.5\"} 1\ngo_gc_duration_seconds_sum 1\ngo_gc_duration_seconds_count 1\nreveille_pool_loads_total 3\nreveille_pool_runners 1"
	b.Reset()
	if err := Expose(&b, []byte(text)); err != nil {
		t.Fatal(err)
	}
	want := `# HELP reveille_runner_refused_total refused requests: auth (bad signature), not_loaded
# TYPE reveille_runner_refused_total counter
reveille_runner_refused_total{reason="auth"} 1
reveille_runner_refused_total{reason="x"} 0
# HELP reveille_runner_request_seconds time from a request's head to the end of the answer
# TYPE reveille_runner_request_seconds histogram
reveille_runner_request_seconds_bucket{model="a b",le="+Inf"} 1
reveille_runner_request_seconds_bucket{model="a b",le="1"} 1
reveille_runner_request_seconds_bucket{model="c",le="+Inf"} 0
reveille_runner_request_seconds_bucket{model="c",le="1"} 0
reveille_runner_request_seconds_count{model="a b"} 1
reveille_runner_request_seconds_count{model="c"} 0
reveille_runner_request_seconds_sum{model="a b"} 0.5
reveille_runner_request_seconds_sum{model="c"} 0
# HELP reveille_runner_requests_open requests being served
# TYPE reveille_runner_requests_open gauge
reveille_runner_requests_open 2
# HELP go_cgo_calls_count of the Go runtime
# TYPE go_cgo_calls_count counter
go_cgo_calls_count 1
# HELP go_gc_duration_seconds of the Go runtime
# TYPE go_gc_duration_seconds summary
go_gc_duration_seconds{quantile="0.5"} 1
go_gc_duration_seconds_sum 1
go_gc_duration_seconds_count 1
# HELP reveille_pool_loads_total loads of models, of all awake runners
# TYPE reveille_pool_loads_total counter
reveille_pool_loads_total 3
# HELP reveille_pool_runners awake runners in the sums reveille_pool_…
# TYPE reveille_pool_runners gauge
reveille_pool_runners 1`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
