package admit

import (
	"sync"
	"sync/atomic"

	"reveille/infra/state"
)

// Route is a runner that has a model loaded. It is a value; compare Host and Generation to tell whether two mean the
// same life of a runner.
type Route struct {
	Host       string
	Addr       string // host:port of the runner
	Generation uint64 // of the runner's registration

	open *atomic.Int64 // open requests of this gateway to the model there
}

// table is the routes of one snapshot, by model. It never changes.
type table struct {
	from   *state.Snapshot
	copies map[string][]loadedCopy
}

type loadedCopy struct {
	route  Route
	others int64 // open requests that the runner counted when the snapshot was taken and that were not ours
}

// buildTable indexes a snapshot. open returns the counter of this gateway's requests to a model on a host.
func buildTable(s *state.Snapshot, open func(host, model string) *atomic.Int64) *table {
	t := &table{from: s, copies: make(map[string][]loadedCopy)}
	for _, h := range s.Hosts {
		for id := range h.Models {
			if _, done := t.copies[id]; done {
				continue
			}
			records := s.Copies(id)
			list := make([]loadedCopy, 0, len(records))
			for _, m := range records {
				host := s.Hosts[m.Host]
				ours := open(m.Host, id)
				list = append(list, loadedCopy{
					route:  Route{Host: m.Host, Addr: host.Addr, Generation: host.Generation, open: ours},
					others: max(0, int64(m.InFlight)-ours.Load()),
				})
			}
			t.copies[id] = list
		}
	}
	return t
}

// pick is the copy with the fewest open requests: ours now, and the others' at the time of the snapshot.
func (t *table) pick(model string) (Route, bool) {
	list := t.copies[model]
	if len(list) == 0 {
		return Route{}, false
	}
	best, least := 0, list[0].others+list[0].route.open.Load()
	for i := 1; i < len(list); i++ {
		if n := list[i].others + list[i].route.open.Load(); n < least {
			best, least = i, n
		}
	}
	return list[best].route, true
}

// Route returns the loaded copy of a model that has the fewest open requests; ok is false when there is none. It makes
// no call and goes on working while the store is away.
func (g *Gate) Route(model string) (r Route, ok bool) {
	t := g.table.Load()
	if s := g.mirror.Snapshot(); t.from != s && g.building.TryLock() {
		// One request builds the new table; those that come meanwhile use the old one rather than wait.
		t = buildTable(s, g.open.of)
		g.table.Store(t)
		g.building.Unlock()
	}
	return t.pick(model)
}

// Begin counts a request to the model as open. Every Begin needs one End with the same arguments.
func (g *Gate) Begin(r Route, model string) { g.counter(r, model).Add(1) }

// End takes back one Begin.
func (g *Gate) End(r Route, model string) { g.counter(r, model).Add(-1) }

// InFlight is how many requests of this gateway to the model on the host are open.
func (g *Gate) InFlight(host, model string) int { return int(g.open.of(host, model).Load()) }

func (g *Gate) counter(r Route, model string) *atomic.Int64 {
	if r.open != nil {
		return r.open
	}
	return g.open.of(r.Host, model)
}

// counters are this gateway's open requests by host and model. A counter once made stays, so that pointers to it may be
// kept; there are as many as hosts times models were ever seen together.
type counters struct {
	mu sync.Mutex
	m  map[place]*atomic.Int64
}

type place struct{ host, model string }

func (c *counters) of(host, model string) *atomic.Int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.m[place{host, model}]
	if n == nil {
		n = new(atomic.Int64)
		c.m[place{host, model}] = n
	}
	return n
}
