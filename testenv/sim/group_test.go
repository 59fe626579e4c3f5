package sim

import (
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/testenv/check"
)

// Groups of up to eight machines serve a burst of 64 requests for one model, by the real driver, claims and runners,
// whatever their cloud does: all requests are answered, there are never more machines than hosts (machine for machine,
// as faults of scalingGroup says), and none is left at the end.
func TestGroup(t *testing.T) {
	const wake = 3 * time.Minute
	for name, tc := range map[string]struct {
		before []Step        // the burst
		during []Step        // its service
		ready  time.Duration // by when eight copies are loaded, on as many machines; 0 not judged
		cut    int           // requests that a machine takes with it
	}{
		"calm":                               {ready: 2*wake + 30*time.Second},
		"no capacity for the first launches": {before: []Step{{Op: NoWake, N: 2}}},
		"no capacity for one of the others": {
			during: []Step{{Op: Rest, After: wake}, {Op: NoWake, N: 1}},
		},
		"a machine that never registers": {before: []Step{{Op: Deaf, N: 1}}},
		"two of the others never register": {
			during: []Step{{Op: Rest, After: wake}, {Op: Deaf, N: 2}},
		},
		"spot notices": {
			during: []Step{{Op: Rest, After: 2*wake + time.Minute}, {Op: Reclaim, Host: 2}, {Op: Reclaim, Host: 5, After: time.Minute}},
			cut:    2 * 8,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := burst(10 * time.Minute)
			s.Group, s.Hosts = true, s.Hosts[:8]
			requests := s.Steps[:2]
			s.Steps = append(append(append([]Step{}, tc.before...), requests...), tc.during...)
			s.Steps = append(s.Steps, Step{Op: Rest, After: time.Hour})
			var group *scalingGroup
			r := run(t, s, func(w *world) { group = w.group })
			for _, v := range r.Violations {
				t.Error(v)
			}
			var ready, last time.Duration
			answered, copies, booted := 0, 0, 0
			up := map[string]bool{}
			for _, e := range r.History {
				switch {
				case e.Step > r.Last-1: // requests that look whether the pool still works
				case e.Kind == check.HostUp:
					booted++
				case e.Kind == check.Ready && copies < 8:
					copies, ready = copies+1, e.At
				case e.Kind == check.Outcome && e.Text == "ok":
					answered, last = answered+1, e.At
				case e.Kind == check.Sample:
					up[e.Host] = e.View.State != policy.Asleep
				}
			}
			left := 0
			for _, on := range up {
				if on {
					left++
				}
			}
			t.Logf("%d machines at most, %d of them served; eight copies after %v; the last response after %v", group.most, booted, ready, last)
			if answered != 64-tc.cut || left != 0 || group.most > 8 {
				t.Errorf("%d answered, %d hosts left, at most %d machines: want %d, 0, 8", answered, left, group.most, 64-tc.cut)
			}
			if tc.ready > 0 && (copies < 8 || ready > tc.ready || booted != 8) {
				t.Errorf("%d copies after %v on %d machines, want 8 within %v on 8", copies, ready, booted, tc.ready)
			}
			if t.Failed() {
				t.Log(historyOf(r))
			}
		})
	}
}
