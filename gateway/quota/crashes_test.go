package quota

import (
	"testing"
	"time"

	"reveille/gateway/api"
)

// Two crashes within ten minutes, under two requests of a key that was alone at the engine, bar the key from the model.
func TestCrashes(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	at := func(m float64) time.Time { return start.Add(time.Duration(m * float64(time.Minute))) }
	type report struct {
		host    string
		sent, t float64 // minutes
		key     rune
		request string
	}
	accounts := map[rune]*Account{'a': {}, 'b': {}, '-': nil}
	for name, c := range map[string]struct {
		reports []report
		key     rune
		free    []float64
		barred  []float64
	}{
		"none":             {nil, 'a', []float64{0}, nil},
		"one":              {[]report{{"h", 0, 1, 'a', "1"}}, 'a', []float64{1, 2, 20}, nil},
		"two":              {[]report{{"h", 0, 1, 'a', "1"}, {"h", 1.5, 2, 'a', "2"}}, 'a', []float64{12, 30}, []float64{2, 5, 11.9}},
		"two hosts":        {[]report{{"h", 0, 1, 'a', "1"}, {"i", 0, 1, 'a', "2"}}, 'a', []float64{11}, []float64{1, 10.9}},
		"of one request":   {[]report{{"h", 0, 1, 'a', "1"}, {"h", 1.5, 2, 'a', "1"}}, 'a', []float64{2}, nil},
		"without a key":    {[]report{{"h", 0, 1, '-', "1"}, {"h", 1.5, 2, '-', "2"}}, '-', []float64{2}, nil},
		"another key":      {[]report{{"h", 0, 1, 'a', "1"}, {"h", 1.5, 2, 'a', "2"}}, 'b', []float64{2}, nil},
		"in one crash":     {[]report{{"h", 0, 1, 'a', "1"}, {"h", 0.5, 1.1, 'a', "2"}}, 'a', []float64{1.1}, nil},
		"sent as it died":  {[]report{{"h", 0, 1, 'a', "1"}, {"h", 1, 1.01, 'a', "2"}}, 'a', []float64{1.1}, nil},
		"far apart":        {[]report{{"h", 0, 1, 'a', "1"}, {"h", 5, 11, 'a', "2"}}, 'a', []float64{11}, nil},
		"again, later":     {[]report{{"h", 0, 1, 'a', "1"}, {"h", 5, 11.5, 'a', "2"}, {"h", 12, 20, 'a', "3"}}, 'a', []float64{30}, []float64{20, 29.9}},
		"in company twice": {[]report{{"h", 0, 1, 'a', "1"}, {"h", 0, 1, 'b', "2"}, {"h", 1.5, 2, 'b', "3"}, {"h", 1.5, 2, 'a', "4"}}, 'a', []float64{2}, nil},
		"in company once":  {[]report{{"h", 0, 1, 'a', "1"}, {"h", 0, 1, 'b', "2"}, {"h", 1.5, 2, 'a', "3"}}, 'a', []float64{2}, nil},
	} {
		var k Crashes
		for _, r := range c.reports {
			k.Record(r.host, "m", r.request, accounts[r.key], at(r.sent), at(r.t))
		}
		for _, m := range c.free {
			if err := k.Check(accounts[c.key], "m", at(m)); err != nil {
				t.Errorf("%s, after %v min: %v", name, m, err)
			}
		}
		for _, m := range c.barred {
			refused(t, k.Check(accounts[c.key], "m", at(m)), api.RateLimitExceeded, 0)
			if err := k.Check(accounts[c.key], "other", at(m)); err != nil {
				t.Errorf("%s, another model: %v", name, err)
			}
		}
	}
}
