package scheduling

import (
	"maps"
	"sync"
	"sync/atomic"

	"reveille/infra/state"
)

// Endpoint is where a request for a model is sent: a runner that has the model loaded. It is a value.
type Endpoint struct {
	Host string
	Addr string // host:port of the runner
	TLS  string // fingerprint of its certificate, "" if it speaks no TLS

	traffic *copyTraffic // of this gateway's requests to the model there
}

// endpointTable holds the endpoints of one snapshot by model. It never changes.
type endpointTable struct {
	from   *state.Snapshot
	copies map[string][]loadedCopy
}

type loadedCopy struct {
	endpoint Endpoint
	others   int64 // open requests of other gateways when the snapshot was taken
}

// buildTable indexes a snapshot. trafficOf returns the counters of this gateway's requests to a model on a host.
func buildTable(s *state.Snapshot, trafficOf func(host, model string) *copyTraffic) *endpointTable {
	t := &endpointTable{from: s, copies: make(map[string][]loadedCopy)}
	for _, h := range s.Hosts {
		for id := range h.Models {
			if _, done := t.copies[id]; done {
				continue
			}
			records := s.Copies(id)
			list := make([]loadedCopy, 0, len(records))
			for _, m := range records {
				host := s.Hosts[m.Host]
				ours := trafficOf(m.Host, id)
				list = append(list, loadedCopy{
					endpoint: Endpoint{Host: m.Host, Addr: host.Addr, TLS: host.TLS, traffic: ours},
					others:   max(0, int64(m.InFlight)-ours.open.Load()),
				})
			}
			t.copies[id] = list
		}
	}
	return t
}

// open returns the open requests to the copy: this gateway's now, plus the others' at the time of the snapshot.
func (c *loadedCopy) open() int64 {
	return c.others + c.endpoint.traffic.open.Load() + c.endpoint.traffic.background.Load()
}

// leastLoaded returns the copy with the fewest open requests.
func leastLoaded(list []loadedCopy) (Endpoint, bool) {
	if len(list) == 0 {
		return Endpoint{}, false
	}
	best, least := 0, list[0].open()
	for i := 1; i < len(list); i++ {
		if n := list[i].open(); n < least {
			best, least = i, n
		}
	}
	return list[best].endpoint, true
}

// Endpoint returns the loaded copy of a model that has the fewest open requests; ok is false if there is none. It makes
// no call and keeps working while the store is unavailable.
func (g *Gate) Endpoint(model string) (e Endpoint, ok bool) {
	return leastLoaded(g.currentTable().copies[model])
}

// EndpointFor is [Gate.Endpoint] for a request with a JSON body. Requests with the same prefix go to the same copy
// from every gateway, so it has probably computed the prefix or encoded its media. A copy that would have more than 1.25
// times the mean of the open requests, rounded up, is passed over for the next one in the prefix's own order (consistent
// hashing with bounded loads).
func (g *Gate) EndpointFor(model string, body []byte) (e Endpoint, ok bool) {
	list := g.currentTable().copies[model]
	if len(list) > 1 {
		if key := prefixOf(body); key != 0 {
			if i := preferredCopy(list, key); i >= 0 {
				return list[i].endpoint, true
			}
		}
	}
	return leastLoaded(list)
}

// currentTable returns the table of the mirror's snapshot, or of the one before.
func (g *Gate) currentTable() *endpointTable {
	t := g.table.Load()
	if s := g.mirror.Snapshot(); t.from != s && g.tableMu.TryLock() {
		// One request builds the new table; others use the old one meanwhile rather than wait.
		g.traffic.prune(s)
		t = buildTable(s, g.traffic.of)
		g.table.Store(t)
		g.tableMu.Unlock()
	}
	return t
}

// Begin counts a request to an endpoint that a gate returned as open, apart from the others if it is one in the
// background: that is spread over the copies like others but wants no further copy. Every Begin needs one End with the
// same argument.
func (e Endpoint) Begin(background bool) {
	if background {
		e.traffic.background.Add(1)
	} else {
		e.traffic.open.Add(1)
	}
}

// End counts a request that Begin counted as ended.
func (e Endpoint) End(background bool) {
	if background {
		e.traffic.background.Add(-1)
	} else {
		e.traffic.ended.Add(1)
		e.traffic.open.Add(-1)
	}
}

// InFlight returns how many requests of this gateway to the model on the host are open.
func (g *Gate) InFlight(host, model string) int { return int(g.traffic.of(host, model).open.Load()) }

// copyTraffic counts the requests of this gateway to a model on a host: open ones and ended ones, and the open ones in
// the background, which are in neither.
type copyTraffic struct{ open, ended, background atomic.Int64 }

// Above maxTrafficEntries, idle entries whose copies are gone are dropped.
const maxTrafficEntries = 4096

// trafficByCopy counts this gateway's requests by host and model. Counters in use stay: callers keep pointers.
type trafficByCopy struct {
	mu sync.Mutex
	m  map[state.CopyID]*copyTraffic
}

func (c *trafficByCopy) of(host, model string) *copyTraffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.m[state.CopyID{Host: host, Model: model}]
	if f == nil {
		f = new(copyTraffic)
		c.m[state.CopyID{Host: host, Model: model}] = f
	}
	return f
}

// prune drops unneeded counters if there are many.
func (c *trafficByCopy) prune(s *state.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.m) <= maxTrafficEntries {
		return
	}
	maps.DeleteFunc(c.m, func(p state.CopyID, f *copyTraffic) bool {
		h := s.Hosts[p.Host]
		return f.open.Load()+f.background.Load() == 0 && (h == nil || h.Models[p.Model] == nil)
	})
}
