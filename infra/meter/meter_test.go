package meter

import (
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

func TestHistogram(t *testing.T) {
	set := metrics.NewSet()
	h := NewHistogram(set, "x_seconds", []float64{0.5, 1, 2})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for _, v := range []float64{0.25, 0.5, 1.5, 2, 3, math.NaN()} {
				h.Update(v)
			}
		})
	}
	all.Wait()
	h.UpdateDuration(time.Now().Add(-time.Hour))
	var b strings.Builder
	set.WritePrometheus(&b)
	for _, want := range []string{
		`x_seconds_bucket{le="0.5"} 16`, `x_seconds_bucket{le="1"} 16`, `x_seconds_bucket{le="2"} 32`, `x_seconds_bucket{le="+Inf"} 41`, "x_seconds_count 41",
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if sum := math.Float64frombits(h.sum.Load()); sum < 8*7.25+3600 || sum > 8*7.25+3700 {
		t.Errorf("the sum is %v", sum)
	}
}

func TestHistogramWithLabels(t *testing.T) {
	set := metrics.NewSet()
	NewHistogram(set, `x_seconds{model="m",kind="k"}`, []float64{1}).Update(0.5)
	var b strings.Builder
	set.WritePrometheus(&b)
	want := "x_seconds_bucket{model=\"m\",kind=\"k\",le=\"+Inf\"} 1\nx_seconds_bucket{model=\"m\",kind=\"k\",le=\"1\"} 1\n" +
		"x_seconds_count{model=\"m\",kind=\"k\"} 1\nx_seconds_sum{model=\"m\",kind=\"k\"} 0.5\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestBoundsMustRise(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it took bounds that fall")
		}
	}()
	NewHistogram(metrics.NewSet(), "x", []float64{2, 1})
}

func TestSum(t *testing.T) {
	var s Sum
	s.Add([]byte("# TYPE r_a counter\nr_a 1\nr_b{x=\"a b} c\",le=\"+Inf\"} 2.5\nother 7\nr_broken\nr_nan NaN\nr_word x\nr_{\n"), "r_")
	s.Add([]byte("r_a 2 1700000000\r\nr_b{x=\"a b} c\",le=\"+Inf\"} 1\nr_c 1e3"), "r_")
	var b strings.Builder
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if want := "r_a 3\nr_b{x=\"a b} c\",le=\"+Inf\"} 3.5\nr_c 1000\n"; b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func BenchmarkHistogram(b *testing.B) {
	h := NewHistogram(metrics.NewSet(), "x", Seconds)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			h.Update(0.017)
		}
	})
}
