package httpapi

import (
	"testing"
	"time"
)

func TestThreeBadRepliesInAMinuteAreTooMany(t *testing.T) {
	t0 := time.Unix(1_700_000_000, 0)
	const second = time.Second
	for name, tc := range map[string]struct {
		after []time.Duration // the first
		want  string          // + where it is too many
	}{
		"three in a minute":       {after: []time.Duration{0, second, 59 * second}, want: "--+"},
		"three in more":           {after: []time.Duration{0, second, 60 * second}, want: "---"},
		"the last three count":    {after: []time.Duration{0, 50 * second, 70 * second, 80 * second}, want: "---+"},
		"from the start after it": {after: []time.Duration{0, second, 2 * second, 3 * second, 4 * second, 5 * second}, want: "--+--+"},
		"one response of a batch": {after: []time.Duration{0, 0, 0, 999 * time.Millisecond}, want: "----"},
		"several of batches":      {after: []time.Duration{0, 0, 2 * second, 2 * second, 4 * second}, want: "----+"},
	} {
		e := &watched{}
		got := ""
		for _, after := range tc.after {
			if e.recordBad(t0.Add(after)) {
				got += "+"
			} else {
				got += "-"
			}
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestFirstByteLimitGrowsWithThePrompt(t *testing.T) {
	const limit = 120 * time.Second
	for _, tc := range []struct {
		prompt int
		stream bool
		want   time.Duration
	}{
		{0, true, limit}, {64 << 10, true, 2 * limit}, {10 << 20, true, WholeResponseFactor * limit}, {0, false, WholeResponseFactor * limit},
		{10 << 20, false, WholeResponseFactor * limit},
	} {
		if got := firstByteLimit(limit, tc.prompt, tc.stream); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}
