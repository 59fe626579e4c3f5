package policy

import (
	"cmp"
	"slices"
)

// Route is a loaded copy that takes requests.
type Route struct {
	Host     string
	InFlight int
}

// Routes lists the copies of a model that take new requests now, the one with the fewest open requests first, ties by
// host name: loaded, not closed, on a ready host.
func Routes(s Snapshot, model string) []Route {
	var out []Route
	for i := range s.Hosts {
		h := &s.Hosts[i]
		if h.State != Ready {
			continue
		}
		for j := range h.Residents {
			if r := &h.Residents[j]; r.ID == model && r.State == ModelLoaded && !r.Closed {
				out = append(out, Route{Host: h.Name, InFlight: r.InFlight})
			}
		}
	}
	slices.SortFunc(out, func(a, b Route) int {
		return cmp.Or(cmp.Compare(a.InFlight, b.InFlight), cmp.Compare(a.Host, b.Host))
	})
	return out
}

// WantCopy reports whether a further copy of want should be placed: some copy serves, none is on its way, there are
// fewer than want.Max, and queued, the requests waiting at the least loaded copy, exceeds served, the requests that copy
// completes in fair_after. Copies are thus added one at a time, each only when the last one did not help enough.
//
// The first copy is not its business: without any, it is false.
func WantCopy(s Snapshot, want Model, queued, served int) bool {
	if queued <= served {
		return false
	}
	loaded := 0
	for i := range s.Hosts {
		h := &s.Hosts[i]
		if h.State == Lost {
			continue
		}
		for j := range h.Queue {
			if h.Queue[j].Model.ID == want.ID {
				return false
			}
		}
		for j := range h.Residents {
			switch r := &h.Residents[j]; {
			case r.ID != want.ID:
			case r.State == ModelLoading:
				return false
			case r.State == ModelLoaded && h.State == Ready:
				loaded++
			}
		}
	}
	return loaded > 0 && loaded < max(1, want.Max)
}
