package sim

import (
	"testing"
	"time"

	"reveille/testenv/check"
)

// burst is eight machines that are off, of which each takes three minutes to wake and serves eight requests at a time,
// and 64 requests for one model that come to two gateways at once.
func burst(serve time.Duration) Scenario {
	s := Scenario{
		Seed: 1, Gateways: 2, Sweep: 20 * time.Second, Idle: time.Minute,
		Copies: Copies{Max: 8, Parallel: 8, Wake: 3 * time.Minute},
	}
	for range 10 {
		s.Hosts = append(s.Hosts, HostSpec{Limits: "1", Asleep: true})
	}
	for n := range 2 {
		s.Steps = append(s.Steps, Step{Op: Request, Gateway: n + 1, Model: modelIndex("c"), N: 32, For: time.Hour, Serve: serve})
	}
	s.Steps = append(s.Steps, Step{Op: Rest, After: 40 * time.Minute})
	return s
}

// A burst is served by as many copies as it needs, after two wakes: the first, and one of all others at once. All
// requests are answered, no copy is started twice, and all machines are off again. Each copy serves some of it, unless
// the first has nearly served it when the others come.
func TestBurst(t *testing.T) {
	copies, wake := burst(0).Copies.Max, burst(0).Copies.Wake
	for _, tc := range []struct {
		serve   time.Duration // of each request
		serving int           // copies that serve, at least
		within  time.Duration // from the first request to the last response
	}{
		{10 * time.Minute, copies, 2*wake + 10*time.Minute},
		{time.Minute, copies / 2, 2*wake + time.Minute},
	} {
		r := Run(t, burst(tc.serve))
		for _, v := range r.Violations {
			t.Error(v)
		}
		var ready, last time.Duration // when the last copy was ready, and the last response ended
		up, most, answered := 0, 0, 0
		hosts, served := map[int]string{}, map[string]int{}
		model := map[string]int{}
		for _, e := range r.History {
			if e.Step > r.Last-1 {
				continue // requests that look whether the pool still works
			}
			switch e.Kind {
			case check.HostUp:
				up++
				most = max(most, up)
			case check.PowerOff:
				up--
			case check.Spawn:
				hosts[e.PID] = e.Host
			case check.Ready:
				ready = e.At
			case check.Enter:
				model[e.Request] = e.PID
			case check.Turn:
				served[hosts[model[e.Request]]]++
			case check.Outcome:
				if e.Text == "ok" {
					answered++
					last = e.At
				}
			}
		}
		t.Logf("requests of %v: %d copies, the last ready after %v; the last response after %v; %v",
			tc.serve, len(hosts), ready, last, served)
		if answered != 2*32 || last > tc.within+30*time.Second {
			t.Errorf("%d requests of %v were answered within %v, want 64 within %v", answered, tc.serve, last, tc.within)
		}
		if len(hosts) != copies || len(served) < tc.serving || most != copies || up != 0 || ready > 2*wake+10*time.Second {
			t.Errorf("%d copies within %v, %d served; %d machines, %d at the end: want %d within two wakes, %d, %d, 0",
				len(hosts), ready, len(served), most, up, copies, tc.serving, copies)
		}
		if t.Failed() {
			t.Log(historyOf(r))
		}
	}
}
