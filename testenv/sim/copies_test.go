package sim

import (
	"testing"
	"time"

	"reveille/testenv/check"
)

// burst is eight machines that are off, of which each takes three minutes to wake and serves eight requests at a time,
// and 64 requests for one model that come to two gateways at once, twice.
func burst(serve time.Duration) Scenario {
	s := Scenario{
		Seed: 1, Gateways: 2, Sweep: 20 * time.Second, Idle: time.Minute,
		Copies: Copies{Max: 8, Parallel: 8, Wake: 3 * time.Minute},
	}
	for range 10 {
		s.Hosts = append(s.Hosts, HostSpec{Limits: "1", Asleep: true})
	}
	for range 2 {
		for n := range 2 {
			s.Steps = append(s.Steps, Step{Op: Request, Gateway: n + 1, Model: modelIndex("c"), N: 32, For: time.Hour, Serve: serve})
		}
		s.Steps = append(s.Steps, Step{Op: Rest, After: 40 * time.Minute})
	}
	return s
}

// A burst is served by as many copies as it needs, which come after two wakes: the first, and one of all others at once.
// Once it is known how many requests a copy serves at a time, all of them come after one. All requests are answered, no
// copy is started twice, and all machines are off again. Each copy serves some of it, unless the first has nearly served
// it when the others come.
func TestBurst(t *testing.T) {
	copies, wake := burst(0).Copies.Max, burst(0).Copies.Wake
	for _, tc := range []struct {
		serve   time.Duration // of each request
		serving int           // copies that serve, at least
	}{{10 * time.Minute, copies}, {time.Minute, copies / 2}} {
		r := Run(t, burst(tc.serve))
		for _, v := range r.Violations {
			t.Error(v)
		}
		up, model := 0, map[string]int{}
		hosts := map[int]string{}
		for n := range 2 {
			began, ready, last := time.Duration(-1), time.Duration(0), time.Duration(0)
			most, answered, spawned, served := 0, 0, 0, map[string]int{}
			for _, e := range r.History {
				if e.Step > r.Last-1 || (e.Step-1)/3 != n {
					continue // another burst, or requests that look whether the pool still works
				}
				switch e.Kind {
				case check.Ask:
					if began < 0 {
						began = e.At
					}
				case check.HostUp:
					up++
					most = max(most, up)
				case check.PowerOff:
					up--
				case check.Spawn:
					hosts[e.PID] = e.Host
					spawned++
				case check.Ready:
					ready = e.At - began
				case check.Enter:
					model[e.Request] = e.PID
				case check.Turn:
					served[hosts[model[e.Request]]]++
				case check.Outcome:
					if e.Text == "ok" {
						answered++
						last = e.At - began
					}
				}
			}
			within := time.Duration(2-n) * wake
			t.Logf("requests of %v: %d copies, the last ready after %v; the last response after %v; %v", tc.serve, spawned, ready, last, served)
			if answered != 2*32 || last > 2*wake+tc.serve+30*time.Second {
				t.Errorf("%d requests of %v were answered within %v, want 64 within two wakes", answered, tc.serve, last)
			}
			if spawned != copies || len(served) < tc.serving || most != copies || up != 0 || ready > within+15*time.Second {
				t.Errorf("%d copies within %v, %d served; %d machines, %d at the end: want %d within %v, %d, %d, 0",
					spawned, ready, len(served), most, up, copies, within, tc.serving, copies)
			}
		}
		if t.Failed() {
			t.Log(historyOf(r))
		}
	}
}
