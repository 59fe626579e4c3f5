package sim

import (
	"testing"
	"time"

	"reveille/testenv/check"
)

// Of two models in turns for one place, each stays loaded for min_loaded, so that there are at most 60 s / min_loaded
// swaps a minute. Without it, there are more.
func TestSwapsPerMinute(t *testing.T) {
	for _, minLoaded := range []time.Duration{0, 15 * time.Second} {
		s := Scenario{Seed: 1, Gateways: 2, MinLoaded: minLoaded, Hosts: []HostSpec{{Limits: "1"}}}
		for i := range 400 {
			model := []string{"a", "c"}[i%2]
			s.Steps = append(s.Steps, Step{Op: Request, Gateway: 1 + i%2, Model: modelIndex(model), N: 1, For: time.Minute, Serve: 100 * time.Millisecond, After: time.Second})
		}
		r := Run(t, s)
		for _, v := range r.Violations {
			if v.Step <= len(s.Steps) { // later, the checker expects loads to start soon
				t.Error(v)
			}
		}
		ready, swaps, worst := map[int]time.Duration{}, []time.Duration{}, 0
		for _, e := range r.History {
			switch {
			case e.Step > len(s.Steps):
			case e.Kind == check.Ready:
				ready[e.PID] = e.At
			case e.Kind == check.StopBegin:
				if kept := e.At - ready[e.PID]; kept < minLoaded {
					t.Errorf("a model was evicted %v after its load", kept)
				}
				swaps = append(swaps, e.At)
				n := 0
				for _, at := range swaps {
					if e.At-at < time.Minute {
						n++
					}
				}
				worst = max(worst, n)
			}
		}
		t.Logf("min_loaded %v: %d swaps, at most %d in a minute; outcomes %v", minLoaded, len(swaps), worst, r.Before)
		if limit := 4; (worst > limit) != (minLoaded == 0) || len(swaps) < 10 {
			t.Errorf("min_loaded %v: %d swaps in a minute, %d in all", minLoaded, worst, len(swaps))
		}
		if r.Before["ok"] != len(s.Steps) {
			t.Errorf("min_loaded %v: %v", minLoaded, r.Before)
		}
	}
}
