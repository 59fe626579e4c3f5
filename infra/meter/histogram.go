package meter

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// Bounds that fit what is measured; each list is the upper ends of buckets, in the unit of its name.
var (
	Seconds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900}
	Tokens  = []float64{1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536}
	Shares  = []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1}
)

// Histogram counts values by size. Its methods are safe for concurrent use and take no lock.
type Histogram struct {
	bounds  []float64
	buckets []atomic.Uint64 // by bound, and one for what is above all; not cumulative
	sum     atomic.Uint64   // bits of a float64
}

// NewHistogram registers a histogram in set as name_bucket, name_sum and name_count. name may have labels, as in
// `x_seconds{model="m"}`, but not le, and must be new in set; bounds must rise.
func NewHistogram(set *metrics.Set, name string, bounds []float64) *Histogram {
	if !slices.IsSorted(bounds) {
		panic(fmt.Sprintf("bounds of %s do not rise: %v", name, bounds))
	}
	family, labels, labelled := strings.Cut(strings.TrimSuffix(name, "}"), "{")
	series := func(suffix string, more ...string) string {
		if labelled {
			more = append([]string{labels}, more...)
		}
		if len(more) == 0 {
			return family + suffix
		}
		return family + suffix + "{" + strings.Join(more, ",") + "}"
	}
	h := &Histogram{bounds: bounds, buckets: make([]atomic.Uint64, len(bounds)+1)}
	for i := range h.buckets {
		le := "+Inf"
		if i < len(bounds) {
			le = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		set.NewGauge(series("_bucket", `le="`+le+`"`), func() float64 { return h.upTo(i) })
	}
	set.NewGauge(series("_sum"), func() float64 { return math.Float64frombits(h.sum.Load()) })
	set.NewGauge(series("_count"), func() float64 { return h.upTo(len(bounds)) })
	return h
}

// upTo returns how many values are in the buckets up to and including this one.
func (h *Histogram) upTo(bucket int) float64 {
	n := uint64(0)
	for i := range bucket + 1 {
		n += h.buckets[i].Load()
	}
	return float64(n)
}

// Update counts a value; what is no number is passed over.
func (h *Histogram) Update(v float64) {
	if math.IsNaN(v) {
		return
	}
	i, _ := slices.BinarySearch(h.bounds, v)
	h.buckets[i].Add(1)
	for {
		old := h.sum.Load()
		if h.sum.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

// UpdateDuration counts the seconds since began.
func (h *Histogram) UpdateDuration(began time.Time) { h.Update(time.Since(began).Seconds()) }
