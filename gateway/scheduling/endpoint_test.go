package scheduling

import (
	"fmt"
	"sync"
	"testing"
)

func TestRouteTakesTheLeastLoadedCopy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a", "b"), nil)
		r.loaded("a", "m0", 5)
		r.loaded("b", "m0", 3)
		if _, ok := r.Endpoint("m1"); ok {
			t.Error("an endpoint for a model that is not loaded")
		}
		var endpoints []Endpoint
		hosts := ""
		for range 6 {
			endpoint, ok := r.Endpoint("m0")
			if !ok {
				t.Fatal("no endpoint")
			}
			r.Begin(endpoint, "m0")
			endpoints, hosts = append(endpoints, endpoint), hosts+endpoint.Host
		}
		if hosts != "bbbaba" {
			t.Errorf("went to %s", hosts)
		}
		if n := r.InFlight("b", "m0"); n != 4 {
			t.Errorf("%d open on b", n)
		}
		for _, endpoint := range endpoints {
			r.End(Endpoint{Host: endpoint.Host}, "m0") // an endpoint built elsewhere counts in the same place
		}
		if n := r.InFlight("a", "m0") + r.InFlight("b", "m0"); n != 0 {
			t.Errorf("%d open after the end", n)
		}
	})
}

func TestRouteFollowsTheMirror(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, newPool("a"), nil)
		r.loaded("a", "m0", 0)
		if _, ok := r.Endpoint("m0"); !ok {
			t.Fatal("no endpoint")
		}
		r.setState("a", "draining")
		if endpoint, ok := r.Endpoint("m0"); ok {
			t.Fatalf("endpoint on a draining host: %+v", endpoint)
		}
	})
}

func TestOwnRequestsAreNotCountedTwice(t *testing.T) {
	p := newPool("a", "b")
	g := New(Config{Store: p, Mirror: p})
	defer g.Close()
	p.loaded("a", "m0", 0)
	p.loaded("b", "m0", 0)
	for range 4 {
		g.Begin(Endpoint{Host: "a"}, "m0")
	}
	g.Begin(Endpoint{Host: "b"}, "m0")
	p.loaded("a", "m0", 4) // the runners have counted them by now
	p.loaded("b", "m0", 5)
	if r, _ := g.Endpoint("m0"); r.Host != "a" {
		t.Errorf("went to %s, which has the other gateways' requests too", r.Host)
	}
}

// big returns a gate over 50 hosts with 20 models each.
func big(t testing.TB) *Gate {
	p := newPool()
	for h := range 50 {
		name := fmt.Sprint("host", h)
		p.host(name, "ready")
		for m := range 20 {
			p.loaded(name, fmt.Sprint("m", (h+m)%40), m)
		}
	}
	g := New(Config{Store: p, Mirror: mirrorOnly{p.copyLocked()}})
	t.Cleanup(g.Close)
	return g
}

func TestWarmRouteDoesNotAllocate(t *testing.T) {
	g := big(t)
	g.Endpoint("m1")
	if n := testing.AllocsPerRun(1000, func() {
		r, _ := g.Endpoint("m1")
		g.Begin(r, "m1")
		g.End(r, "m1")
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func TestRoutesBesideNewSnapshots(t *testing.T) {
	p := newPool("a", "b")
	g := New(Config{Store: p, Mirror: p})
	defer g.Close()
	p.loaded("a", "m0", 0)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				if r, ok := g.Endpoint("m0"); ok {
					g.Begin(r, "m0")
					g.End(r, "m0")
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 200 {
			p.loaded("b", "m0", i)
		}
	})
	wg.Wait()
	if n := g.InFlight("a", "m0") + g.InFlight("b", "m0"); n != 0 {
		t.Errorf("%d open after the end", n)
	}
}
