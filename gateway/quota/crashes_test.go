package quota

import (
	"testing"
	"time"

	"reveille/gateway/api"
)

func TestCrashes(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	at := func(m float64) time.Time { return start.Add(time.Duration(m * float64(time.Minute))) }
	type crash struct {
		engine  string
		sent, t float64 // minutes
	}
	for name, c := range map[string]struct {
		crashes []crash
		free    []float64
		barred  []float64
	}{
		"none":               {nil, []float64{0}, nil},
		"one":                {[]crash{{"h/a", 0, 1}}, []float64{1, 2, 20}, nil},
		"two":                {[]crash{{"h/a", 0, 1}, {"h/a", 1.5, 2}}, []float64{12, 30}, []float64{2, 5, 11.9}},
		"two engines":        {[]crash{{"h/a", 0, 1}, {"h/b", 0, 1}}, []float64{11}, []float64{1, 10.9}},
		"two in one crash":   {[]crash{{"h/a", 0, 1}, {"h/a", 0.5, 1.1}}, []float64{1.1}, nil},
		"sent as it died":    {[]crash{{"h/a", 0, 1}, {"h/a", 1, 1.01}}, []float64{1.1}, nil},
		"far apart":          {[]crash{{"h/a", 0, 1}, {"h/a", 5, 11}}, []float64{11}, nil},
		"the last two count": {[]crash{{"h/a", 0, 1}, {"h/a", 5, 11.5}, {"h/a", 12, 20}}, []float64{30}, []float64{20, 29.9}},
		"again once barred":  {[]crash{{"h/a", 0, 1}, {"h/a", 1.5, 2}, {"h/a", 3, 8}}, []float64{18}, []float64{12, 17.9}},
	} {
		var k Crashes
		for i, one := range c.crashes {
			barred := k.Note(one.engine, at(one.sent), at(one.t))
			if want := k.Check(at(one.t)) != nil; barred != want {
				t.Errorf("%s, crash %d: barred %v, want %v", name, i, barred, want)
			}
		}
		for _, m := range c.free {
			if err := k.Check(at(m)); err != nil {
				t.Errorf("%s, after %v min: %v", name, m, err)
			}
		}
		for _, m := range c.barred {
			refused(t, k.Check(at(m)), api.RateLimitExceeded, 0)
		}
	}
}
