package scheduling

import (
	"testing"
	"time"
)

// twoCopies allows m0 a second copy.
func twoCopies(c *Config) {
	m, _ := c.Catalog().Model("m0")
	m.Replicas.Max = 2
}

// A copy whose queue stays longer than what it serves in fair_after gets a second copy on another host, which takes the
// requests that arrive then.
func TestFurtherCopy(t *testing.T) {
	for name, tc := range map[string]struct {
		open, parallel int  // open requests, and how many of them the engine works on
		ends           int  // requests that end in a second, each followed by a new one
		others         int  // requests of other gateways
		single         bool // the catalogue allows one copy
		asleep         bool // the other host
		want           bool
	}{
		"nothing ends":                      {open: 6, parallel: 4, want: true},
		"served slowly":                     {open: 12, parallel: 4, ends: 3, want: true},
		"served in time":                    {open: 12, parallel: 4, ends: 5},
		"no queue":                          {open: 4, parallel: 4},
		"the runner says nothing":           {open: 2, want: true},
		"one request":                       {open: 1},
		"others wait too":                   {open: 2, parallel: 4, others: 4, want: true},
		"others are served like ours":       {open: 6, parallel: 4, ends: 2, others: 6},
		"one copy is allowed":               {open: 6, parallel: 4, single: true},
		"the other host sleeps":             {open: 6, parallel: 4, asleep: true, want: true},
		"nobody asks this gateway for long": {parallel: 4, others: 20},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPool("a", "b")
				if tc.asleep {
					p.setState("b", "asleep")
				}
				p.loaded("a", "m0", tc.open+tc.others)
				if tc.parallel > 0 {
					p.hosts["a"].Models["m0"].Fields = map[string]string{"plan": `{"parallel":4}`}
				}
				change := twoCopies
				if tc.single {
					change = nil
				}
				r := start(t, p, change)
				at, ok := r.Endpoint("m0")
				if !ok || at.Host != "a" {
					t.Fatalf("endpoint %+v", at)
				}
				for range tc.open {
					r.Begin(at, "m0")
				}
				time.Sleep(500 * time.Millisecond) // between two looks of the gate
				for range 10 {
					time.Sleep(time.Second)
					for range tc.ends {
						r.End(at, "m0")
						r.Begin(at, "m0")
					}
					if tc.asleep && p.Snapshot().Hosts["b"].State == "waking" {
						p.setState("b", "ready")
					}
				}
				if n := r.loadsOf("m0"); (n == 1) != tc.want || n > 1 {
					t.Fatalf("%d further copies, want one: %v", n, tc.want)
				}
				if next, ok := r.Endpoint("m0"); tc.want && (!ok || next.Host != "b") {
					t.Errorf("the next request goes to %+v, not to the new copy", next)
				}
			})
		})
	}
}
