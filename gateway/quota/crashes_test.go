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
		keys    string
	}
	accounts := map[rune]*Account{'a': {}, 'b': {}, 'c': {}, '-': nil}
	for name, c := range map[string]struct {
		crashes []crash
		key     rune
		free    []float64
		barred  []float64
	}{
		"none":               {nil, 'a', []float64{0}, nil},
		"one":                {[]crash{{"h/a", 0, 1, "a"}}, 'a', []float64{1, 2, 20}, nil},
		"two":                {[]crash{{"h/a", 0, 1, "a"}, {"h/a", 1.5, 2, "a"}}, 'a', []float64{12, 30}, []float64{2, 5, 11.9}},
		"two without a key":  {[]crash{{"h/a", 0, 1, "-"}, {"h/a", 1.5, 2, "-"}}, '-', []float64{12}, []float64{2, 11.9}},
		"two engines":        {[]crash{{"h/a", 0, 1, "a"}, {"h/b", 0, 1, "a"}}, 'a', []float64{11}, []float64{1, 10.9}},
		"two in one crash":   {[]crash{{"h/a", 0, 1, "a"}, {"h/a", 0.5, 1.1, "a"}}, 'a', []float64{1.1}, nil},
		"sent as it died":    {[]crash{{"h/a", 0, 1, "a"}, {"h/a", 1, 1.01, "a"}}, 'a', []float64{1.1}, nil},
		"far apart":          {[]crash{{"h/a", 0, 1, "a"}, {"h/a", 5, 11, "a"}}, 'a', []float64{11}, nil},
		"the last two count": {[]crash{{"h/a", 0, 1, "a"}, {"h/a", 5, 11.5, "a"}, {"h/a", 12, 20, "a"}}, 'a', []float64{30}, []float64{20, 29.9}},
		"again once barred":  {[]crash{{"h/a", 0, 1, "a"}, {"h/a", 1.5, 2, "a"}, {"h/a", 3, 8, "a"}}, 'a', []float64{18}, []float64{12, 17.9}},
		"another key":        {[]crash{{"h/a", 0, 1, "a"}, {"h/a", 1.5, 2, "a"}}, 'b', []float64{2}, nil},

		"twice with the same key":         {[]crash{{"h/a", 0, 1, "ab"}, {"h/a", 1.5, 2, "ab"}}, 'a', []float64{2}, nil},
		"alone the second time":           {[]crash{{"h/a", 0, 1, "ab"}, {"h/a", 1.5, 2, "a"}}, 'a', nil, []float64{2}},
		"in company once":                 {[]crash{{"h/a", 0, 1, "ab"}, {"h/a", 1.5, 2, "a"}}, 'b', []float64{2}, nil},
		"in company the second time":      {[]crash{{"h/a", 0, 1, "a"}, {"h/a", 1.5, 2, "ba"}}, 'a', nil, []float64{2}},
		"in other company":                {[]crash{{"h/a", 0, 1, "ab"}, {"h/a", 1.5, 2, "ca"}}, 'a', nil, []float64{2}},
		"cleared by who is barred":        {[]crash{{"h/a", 0, 1, "ab"}, {"h/a", 1.5, 2, "a"}, {"h/a", 2.5, 3, "b"}}, 'b', []float64{3}, nil},
		"with a barred key's old request": {[]crash{{"h/a", 0, 1, "a"}, {"h/a", 1.5, 2, "a"}, {"h/b", 0, 3, "ab"}, {"h/a", 3.5, 4, "b"}}, 'b', []float64{4}, nil},
	} {
		var k Crashes
		for _, one := range c.crashes {
			var keys []*Account
			for _, key := range one.keys {
				keys = append(keys, accounts[key])
			}
			barred, is := k.Record(one.engine, at(one.sent), at(one.t), keys)
			if is && k.Check(barred, at(one.t)) == nil {
				t.Errorf("%s: Note reported a barred key that is not barred", name)
			}
		}
		for _, m := range c.free {
			if err := k.Check(accounts[c.key], at(m)); err != nil {
				t.Errorf("%s, after %v min: %v", name, m, err)
			}
		}
		for _, m := range c.barred {
			refused(t, k.Check(accounts[c.key], at(m)), api.RateLimitExceeded, 0)
		}
	}
}

func TestRivals(t *testing.T) {
	a, b, c := &Account{}, &Account{}, &Account{}
	var k Crashes
	start := time.Unix(1_700_000_000, 0)
	after := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	k.Record("h/m", start, after(0), []*Account{a, b})
	k.Record("h/m", after(1), after(2), []*Account{c})
	for _, one := range []struct {
		key, want *Account
		minutes   int
	}{{a, b, 9}, {b, a, 9}, {a, nil, 10}, {c, nil, 3}} {
		got := k.Rivals(one.key, after(one.minutes))
		if len(got) > 1 || (len(got) == 1) != (one.want != nil) || len(got) == 1 && got[0] != one.want {
			t.Errorf("after %d min: %d rivals, want %v", one.minutes, len(got), one.want != nil)
		}
	}
	k.Record("h/m", after(3), after(4), []*Account{b})
	if len(k.Rivals(a, after(5))) > 0 || len(k.Rivals(b, after(5))) > 0 {
		t.Error("keys are rivals although it is known who caused the crash")
	}
}
