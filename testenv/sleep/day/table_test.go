package day

import (
	"fmt"
	"math"
	"strings"
	"time"

	"reveille/infra/policy"
)

// columns are what the table says of the days that were played one way.
var columns = [...]struct {
	name   string
	digits int // after the point
	of     func(*tally) float64
}{
	{"requests", 0, func(s *tally) float64 { return float64(s.requests) }},
	{"host hours", 1, func(s *tally) float64 { return s.hours }},
	{"price", 1, func(s *tally) float64 { return s.price }},
	{"cold starts", 0, func(s *tally) float64 { return float64(s.loads) }},
	{"evictions", 0, func(s *tally) float64 { return float64(s.evictions) }},
	{"wakes", 1, func(s *tally) float64 { return float64(s.wakes) }},
	{"mean wait, s", 1, func(s *tally) float64 { return s.meanWait().Seconds() }},
	{"p99 wait, s", 1, func(s *tally) float64 { return s.wait(0.99).Seconds() }},
}

// head is the table's first two lines.
func head() string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return "\n| evict | " + strings.Join(names, " | ") + " |\n|" + strings.Repeat("---|", 1+len(columns))
}

// row is the mean of some days, with its standard deviation where there are several.
func row(evict policy.Eviction, days []*tally) string {
	cells := make([]string, len(columns))
	for i, c := range columns {
		values := make([]float64, len(days))
		for j, day := range days {
			values[j] = c.of(day)
		}
		mean, deviation := spread(values)
		cells[i] = fmt.Sprintf("%.*f", c.digits, mean)
		if len(days) > 1 {
			cells[i] += fmt.Sprintf(" ± %.*f", c.digits, deviation)
		}
	}
	return "\n| " + string(evict) + " | " + strings.Join(cells, " | ") + " |"
}

// spread is the mean and the standard deviation of a sample.
func spread(values []float64) (mean, deviation float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		deviation += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(deviation / max(1, n-1))
}

func (s *tally) meanWait() time.Duration {
	var total time.Duration
	for _, d := range s.waits {
		total += d
	}
	return total / time.Duration(max(1, len(s.waits)))
}

// wait is the longest wait but for that share of the waits; the waits are in order.
func (s *tally) wait(share float64) time.Duration {
	if len(s.waits) == 0 {
		return 0
	}
	return s.waits[int(share*float64(len(s.waits)-1))]
}
