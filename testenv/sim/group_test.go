package sim

import (
	"math/rand/v2"
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

// Times of falls.
const (
	burstLasts = 11 * time.Minute
	levelLasts = 10 * time.Minute
)

// falls draws a scenario in which 64 requests are open at a time on a group of eight machines, then about 24, 8 and
// none, and a model of another type that is in use on one of them until the last level.
func falls(seed uint64) Scenario {
	g := rand.New(rand.NewPCG(seed, 0xfa11))
	s := burst(0)
	s.Seed, s.Group, s.Hosts, s.Idle = seed, true, s.Hosts[:8], time.Minute
	s.Steps = []Step{{Op: Request, Model: modelIndex("c"), N: 64, For: time.Hour, Serve: 4 * time.Minute, After: burstLasts}}
	const every = 5 * time.Second
	for _, open := range []int{24, 8} {
		for range levelLasts / every {
			serve := 30*time.Second + time.Duration(g.Int64N(int64(30*time.Second))) // 9 steps on average
			s.Steps = append(s.Steps,
				Step{Op: Request, Gateway: g.IntN(2), Model: modelIndex("c"), N: (open + g.IntN(9)) / 9, For: time.Hour, Serve: serve},
				Step{Op: Request, Gateway: g.IntN(2), Model: modelIndex("e"), For: time.Hour, Serve: time.Second, After: every})
		}
	}
	s.Steps = append(s.Steps, Step{Op: Rest, After: levelLasts})
	return s
}

// When load falls, the machines of a group go back one by one and none that serves is ended: no request is cut, none is
// launched a second time, and each level of load ends on fewer machines. Each copy that goes as spare was so for the idle
// time since the one before it.
func TestLoadFalls(t *testing.T) {
	first, n := *firstRun, (few()+9)/10
	if *oneSeed != 0 {
		first, n = *oneSeed, 1
	}
	for seed := first; seed < first+uint64(n); seed++ {
		s := falls(seed)
		var group *scalingGroup
		r := run(t, s, func(w *world) { group = w.group })
		for _, v := range r.Violations {
			t.Errorf("seed %d: %v", seed, v)
		}
		var up, most, launched, answered, other int
		var atEnd []int // machines at the end of each level
		var offs, spares []time.Duration
		for _, e := range r.History {
			for level := time.Duration(len(atEnd)); level < 3 && e.At >= burstLasts+(level+1)*levelLasts; level++ {
				atEnd = append(atEnd, up)
			}
			if e.Step > r.Last-1 {
				continue // requests that look whether the pool still works
			}
			switch e.Kind {
			case check.HostUp:
				up, launched = up+1, launched+1
				most = max(most, up)
			case check.PowerOff:
				up--
				offs = append(offs, e.At)
			case check.Unload: // a sweep that is told that its snapshot is old decides again at once
				if e.For == 0 && (len(spares) == 0 || e.At-spares[len(spares)-1] > time.Second) {
					spares = append(spares, e.At)
				}
			case check.Outcome:
				if e.Text == "ok" {
					answered++
				} else {
					other++
				}
			}
		}
		t.Logf("seed %d: %d machines at most, %d launched, %v at the ends of the levels; %d responses; off at %v", seed, most, launched, atEnd, answered, offs)
		if launched != 8 || most != 8 || other != 0 || len(group.wrong) > 0 {
			t.Errorf("seed %d: %d machines launched, %d at a time, %d requests without a response, %v", seed, launched, most, other, group.wrong)
		}
		for i := 1; i < len(spares); i++ {
			if spares[i]-spares[i-1] < s.Idle/8 {
				t.Errorf("seed %d: spare copies went at %v, two of them on one observation of %v", seed, spares, s.Idle)
			}
		}
		if len(atEnd) < 3 || atEnd[0] > 7 || atEnd[1] > 3 || atEnd[2] != 0 {
			t.Errorf("seed %d: %v machines at the ends of the levels, want at most 7, 3, 0", seed, atEnd)
		}
	}
}
