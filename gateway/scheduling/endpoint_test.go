package scheduling

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/state"
)

func TestEndpointTakesTheLeastLoadedCopy(t *testing.T) {
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
			endpoint.Begin(false)
			endpoints, hosts = append(endpoints, endpoint), hosts+endpoint.Host
		}
		if hosts != "bbbaba" {
			t.Errorf("went to %s", hosts)
		}
		if n := r.InFlight("b", "m0"); n != 4 {
			t.Errorf("%d open on b", n)
		}
		for _, endpoint := range endpoints {
			endpoint.End(false)
		}
		if n := r.InFlight("a", "m0") + r.InFlight("b", "m0"); n != 0 {
			t.Errorf("%d open after the end", n)
		}
	})
}

func TestEndpointFollowsTheMirror(t *testing.T) {
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
		Endpoint{traffic: g.traffic.of("a", "m0")}.Begin(false)
	}
	Endpoint{traffic: g.traffic.of("b", "m0")}.Begin(false)
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

func TestEndpointDoesNotAllocate(t *testing.T) {
	g := big(t)
	g.Endpoint("m1")
	if n := testing.AllocsPerRun(1000, func() {
		r, _ := g.Endpoint("m1")
		r.Begin(false)
		r.End(false)
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func TestEndpointsBesideNewSnapshots(t *testing.T) {
	p := newPool("a", "b")
	g := New(Config{Store: p, Mirror: p})
	defer g.Close()
	p.loaded("a", "m0", 0)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				if r, ok := g.Endpoint("m0"); ok {
					r.Begin(false)
					r.End(false)
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

// chatBody is a body of a chat of some turns, with a first turn of its own.
func chatBody(name string, turns int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":"m0","temperature":0,"messages":[{"role":"system","content":"Be \"brief\"."},{"content":"%s","role":"user"}`, name)
	for i := 1; i < turns; i++ {
		fmt.Fprintf(&b, `,{"role":"assistant","content":"answer %d"},{"role":"user","content":"question %d of %s"}`, i, i, name)
	}
	b.WriteString(`],"stream":true}`)
	return []byte(b.String())
}

func TestPrefixes(t *testing.T) {
	seen := map[uint64]string{}
	for name, body := range map[string]string{
		"chat": string(chatBody("a", 1)), "another chat": string(chatBody("b", 1)),
		"prompt": `{"prompt":"once upon"}`, "another prompt": `{"prompt":"once"}`,
		"no user": `{"messages":[{"role":"system","content":"x"}]}`,
	} {
		key := prefixOf([]byte(body))
		if other, taken := seen[key]; taken || key == 0 {
			t.Errorf("%s has the beginning %d of %s", name, key, other)
		}
		seen[key] = name
	}
	first := prefixOf(chatBody("a", 1))
	for turns := 2; turns < 20; turns++ {
		if prefixOf(chatBody("a", turns)) != first {
			t.Errorf("after %d turns it is another conversation", turns)
		}
	}
	for _, body := range []string{`{"messages":[{"role":"user","content":[`, `{"messages":[{"role":"user","content":[{"type":`, `{"messages":[{"role":"user","content":[[[7`} {
		prefixOf([]byte(body)) // ends
	}
	for _, body := range []string{``, `{}`, `[]`, `{"input":"x"}`, `{"messages":[]}`, `{"messages":`, `{"messages":7}`, `{"messages":[[[`, "\x00", `{"x":{"messages":[{"role":"user"}]}}`} {
		if key := prefixOf([]byte(body)); key != 0 && body != `{"messages":[[[` {
			t.Errorf("%s has a beginning", body)
		}
	}
}

// All turns of a conversation go to one copy, the same one at every gateway, conversations spread over the copies, and
// no copy gets much more than its share.
func TestTurnsGoToOneCopy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b", "c", "d")
		one, two := start(t, p, nil), start(t, p, nil)
		for _, h := range []string{"a", "b", "c", "d"} {
			p.loaded(h, "m0", 0)
		}
		home, count := map[string]string{}, map[string]int{}
		for i := range 400 {
			name := fmt.Sprint("chat ", i)
			r, ok := one.EndpointFor("m0", chatBody(name, 1))
			if !ok {
				t.Fatal("no endpoint")
			}
			home[name] = r.Host
			count[r.Host]++
			if r, _ := two.EndpointFor("m0", chatBody(name, 1)); r.Host != home[name] {
				t.Errorf("%s goes to %s at one gateway and to %s at another", name, home[name], r.Host)
			}
			if r, _ := one.EndpointFor("m0", chatBody(name, 5)); r.Host != home[name] {
				t.Errorf("%s moves from %s to %s", name, home[name], r.Host)
			}
		}
		for _, h := range []string{"a", "b", "c", "d"} {
			if count[h] < 60 || count[h] > 140 {
				t.Errorf("400 conversations spread as %v", count)
			}
		}
		same := chatBody("everybody's", 1)
		open := map[string]int{}
		for n := 1; n <= 200; n++ {
			r, _ := one.EndpointFor("m0", same)
			r.Begin(false)
			if open[r.Host]++; float64(open[r.Host]) > 1.25*float64(n)/4+1 {
				t.Fatalf("%d of %d requests are open at one of 4 copies", open[r.Host], n)
			}
		}
		p.mu.Lock()
		gone := home["chat 0"]
		delete(p.hosts[gone].Models, "m0")
		p.rev++
		p.mu.Unlock()
		moved := 0
		three := start(t, p, nil)
		for name, was := range home {
			r, _ := three.EndpointFor("m0", chatBody(name, 1))
			if was != gone && r.Host != was {
				moved++
			}
		}
		if moved > 0 {
			t.Errorf("%d conversations moved when a copy went that was not theirs", moved)
		}
		if r, ok := one.EndpointFor("m0", []byte(`{"input":"x"}`)); !ok || r.Host == "" {
			t.Error("a body without a beginning has no endpoint")
		}
		if _, ok := one.EndpointFor("none", same); ok {
			t.Error("an endpoint for a model that is not loaded")
		}
	})
}

func TestChoiceByPrefixDoesNotAllocate(t *testing.T) {
	g, body := several(t), chatBody("a", 10)
	if n := testing.AllocsPerRun(1000, func() { g.EndpointFor("m0", body) }); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func several(t testing.TB) *Gate {
	p := newPool("a", "b", "c", "d")
	for _, h := range []string{"a", "b", "c", "d"} {
		p.loaded(h, "m0", 0)
	}
	g := New(Config{Store: p, Mirror: mirrorOnly{p.copyLocked()}})
	t.Cleanup(g.Close)
	return g
}

// twoCopies allows m0 a second copy.
func twoCopies(c *Config) {
	m, _ := c.Catalog().Model("m0")
	m.Replicas.Max = 2
}

// A copy whose queue stays longer than what it serves in --fair-after gets a second copy on another host, which takes the
// requests that arrive then.
func TestFurtherCopy(t *testing.T) {
	for name, tc := range map[string]struct {
		open, parallel int  // open requests, and how many of them the engine works on
		ends           int  // requests that end in a second, each followed by a new one
		others         int  // requests of other gateways
		single         bool // the catalog allows one copy
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
					at.Begin(false)
				}
				time.Sleep(500 * time.Millisecond) // between two looks of the gate
				for range 10 {
					time.Sleep(time.Second)
					for range tc.ends {
						at.End(false)
						at.Begin(false)
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

// A burst wants several further copies, and gets all of them at once: each on a host of its own, which is woken, and
// none twice, although two gateways serve the burst.
func TestFurtherCopiesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		var sleepers []string
		for i := range 9 {
			sleepers = append(sleepers, fmt.Sprint("h", i))
			p.host(sleepers[i], "asleep")
		}
		cat := testCatalog(t, sleepers...)
		p.loaded("a", "m0", 64)
		p.hosts["a"].Models["m0"].Fields = map[string]string{"plan": `{"parallel":8}`}
		var mu sync.Mutex
		woken := map[string]int{}
		for range 2 {
			r := start(t, p, func(c *Config) {
				c.Catalog = func() *catalog.Catalog { return cat }
				m, _ := cat.Model("m0")
				m.Hosts, m.Replicas.Max = nil, 10
				c.Waker = wakerFunc(func(_ context.Context, host string) error {
					mu.Lock()
					defer mu.Unlock()
					woken[host]++
					return nil
				})
			})
			at, _ := r.Endpoint("m0")
			for range 32 {
				at.Begin(false)
			}
		}
		time.Sleep(6 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		queued := map[string]int{}
		for _, h := range p.Snapshot().Hosts {
			if len(h.Queue) > 0 {
				queued[h.Name] = len(h.Queue)
			}
		}
		if len(queued) != 7 || !maps.Equal(queued, woken) || len(p.tickets) != 7 {
			t.Errorf("copies are queued on %v, and %v were woken, want the same 7 hosts, each once", queued, woken)
		}
	})
}

// While requests wait at one copy and another has room, each gateway asks the runner for its share of them.
func TestWaitingRequestsAreSentBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b")
		p.loaded("a", "m0", 20)
		p.loaded("b", "m0", 2)
		for _, h := range []string{"a", "b"} {
			p.hosts[h].Models["m0"].Fields = map[string]string{"plan": `{"parallel":8}`}
		}
		asked := make(chan string, 100)
		r := start(t, p, func(c *Config) {
			twoCopies(c)
			c.SendBack = func(_ context.Context, host *state.HostRecord, model string, n int) error {
				asked <- fmt.Sprint(host.Name, " ", model, " ", n)
				return nil
			}
		})
		at, _ := r.endpointOn("a", "m0")
		time.Sleep(3500 * time.Millisecond) // between two looks of the gate
		if len(asked) != 0 {
			t.Fatalf("asked for %q, although all requests are other gateways'", <-asked)
		}
		for range 10 { // half of those on a; 12 wait, and b has room for 6
			at.Begin(false)
		}
		time.Sleep(time.Second)
		if got := <-asked; got != "a m0 3" || len(asked) > 0 {
			t.Errorf("asked for %q and %d more, want a m0 3", got, len(asked))
		}
		for range 10 {
			at.End(false)
		}
	})
}

// loadCounter is an account that counts loads.
type loadCounter struct{ n atomic.Int64 }

func (*loadCounter) BeginWait() error   { return nil }
func (*loadCounter) EndWait()           {}
func (c *loadCounter) CountLoad() error { c.n.Add(1); return nil }
func (c *loadCounter) ReturnLoad()      { c.n.Add(-1) }

// Lines of a batch that ask together for a model that is not loaded load one copy, and are charged for one load.
func TestLoadIfRoomOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b")
		r := start(t, p, nil)
		var account loadCounter
		for range 3 {
			var lines sync.WaitGroup
			for range 16 {
				lines.Go(func() { r.LoadIfRoom(t.Context(), "m0", &account) })
			}
			lines.Wait()
			time.Sleep(200 * time.Millisecond)
		}
		p.set(func() {
			if n := len(p.tickets); n != 1 || account.n.Load() != 1 {
				t.Errorf("%d loads, of which %d were charged", n, account.n.Load())
			}
		})
	})
}

// Lines of a batch load a further copy where there is room if all copies are full, and as many are allowed.
func TestLoadIfRoomFurtherCopy(t *testing.T) {
	for open, want := range map[int]int{4: 0, 5: 1} { // of a copy that serves four at a time
		bubble(t, func(t *testing.T) {
			p := newPool("a", "b")
			p.loaded("a", "m0", 0)
			p.hosts["a"].Models["m0"].Fields = map[string]string{"plan": `{"parallel":4}`}
			r := start(t, p, twoCopies)
			e, ok := r.Endpoint("m0")
			for range open {
				e.Begin(true)
			}
			var account loadCounter
			for range 2 {
				r.LoadIfRoom(t.Context(), "m0", &account)
			}
			p.set(func() {
				if n := len(p.tickets); !ok || n != want {
					t.Errorf("%d open lines: %d loads, want %d", open, n, want)
				}
			})
		})
	}
}

// A load that another gateway's change has overtaken, so that it is not queued, is not charged.
func TestLoadIfRoomIsNotChargedForNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a")
		r := start(t, p, nil)
		var account loadCounter
		p.set(func() { p.stale = 1 })
		for try, want := range []int64{0, 1} {
			r.LoadIfRoom(t.Context(), "m0", &account)
			if n := account.n.Load(); n != want {
				t.Errorf("after try %d, %d loads are charged, want %d", try+1, n, want)
			}
		}
	})
}

// A copy that makes room for work in the background is unloaded if a batch's next model would have room without it, and
// no other copy is.
func TestLeftoverMakesRoom(t *testing.T) {
	for name, tc := range map[string]struct {
		makesRoom string
		loaded    []string // on host a, which holds two models
		want      string   // model that is unloaded
	}{
		"it makes room":         {"1", []string{"m1", "m2"}, "m1"},
		"people use it":         {"0", []string{"m1", "m2"}, ""},
		"there is room, anyway": {"1", []string{"m1"}, ""},
		"no room without it":    {"1", []string{"m1", "m2", "m3"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPool("a")
				p.host("b", "asleep")
				p.hosts["a"].Limits = "2"
				for _, m := range tc.loaded {
					p.loaded("a", m, 0)
				}
				p.hosts["a"].Models["m1"].Fields = map[string]string{state.FieldMakesRoom: tc.makesRoom}
				r := start(t, p, nil)
				var account loadCounter
				for range 3 { // one ticket within leftoverEvery
					r.LoadIfRoom(t.Context(), "m0", &account)
					time.Sleep(time.Second)
				}
				unloaded, n := "", 0
				p.set(func() {
					for _, ticket := range p.tickets {
						if ticket.rec.Kind == "unload" && ticket.rec.Fields[state.FieldUnusedMS] != "" {
							unloaded, n = ticket.rec.Model, n+1
						}
					}
				})
				if unloaded != tc.want || n > 1 {
					t.Errorf("%d unloads, of %q, want %q", n, unloaded, tc.want)
				}
			})
		})
	}
}
