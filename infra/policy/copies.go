package policy

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// CopyLoad is how busy a loaded copy of a model is with the requests of all gateways.
type CopyLoad struct {
	Open     int // requests
	Served   int // requests that it completes within --fair-after
	Parallel int // requests that it serves at the same time; 0 if unknown, which counts as 1
}

// Queued returns how many of the copy's requests neither run nor are served within --fair-after. It is negative for a
// copy with room for more.
func (l CopyLoad) Queued() int { return l.Open - l.Served - max(1, l.Parallel) }

// WantCopy returns how many further copies of want to place. copies are the loaded ones, the least loaded first. As
// long as that one has no queue (CopyLoad.Queued), requests have a copy to go to, and no further one is wanted.
// Otherwise there should be as many copies as serve all open requests at the same time, but for those that are served
// within --fair-after, and at most want.Max:
//
//	min(want.Max, ⌈(open - served) / parallel⌉) - loaded - loading
//
// A further copy counts with the parallelism of the best one. If no copy's is known, copies are added one at a time.
//
// While the first copy is being loaded, copies has that one, with the requests that wait for it. It does not decide about
// the first copy: without any copy it returns 0.
func WantCopy(s Snapshot, want Model, copies []CopyLoad) int {
	if len(copies) == 0 || copies[0].Queued() <= 0 {
		return 0
	}
	loaded, loading := countCopies(&s, want.ID)
	if loaded == 0 {
		if loading == 0 {
			return 0
		}
		loaded, loading = 1, loading-1
	}
	queued, parallel := 0, 0
	for _, c := range copies {
		queued += c.Queued()
		parallel = max(parallel, c.Parallel)
	}
	further := 1
	if parallel > 0 {
		further = (max(queued, 0) + parallel - 1) / parallel
	}
	return max(0, min(further, max(1, want.Max)-loaded)-loading)
}

// Rebalance returns for each copy how many of its waiting requests the other copies have room for. The last copies,
// which are the most loaded, give first. Copies of unknown parallelism neither give nor take.
func Rebalance(copies []CopyLoad) []int {
	room, out := 0, make([]int, len(copies))
	for _, c := range copies {
		if c.Parallel > 0 {
			room += max(0, c.Parallel-c.Open)
		}
	}
	for i := len(copies) - 1; i >= 0; i-- {
		if c := copies[i]; c.Parallel > 0 {
			out[i] = min(room, max(0, c.Open-c.Parallel))
			room -= out[i]
		}
	}
	return out
}

// countCopies returns on how many hosts the model is loaded, and on how many others it is being loaded or queued. Hosts
// that are lost do not count.
func countCopies(s *Snapshot, id string) (loaded, loading int) {
	for i := range s.Hosts {
		h := &s.Hosts[i]
		if h.State == Lost {
			continue
		}
		serves, comes := false, h.Loading == id
		for j := range h.Queue {
			comes = comes || h.Queue[j].Model.ID == id
		}
		for j := range h.Residents {
			if r := &h.Residents[j]; r.ID == id {
				serves = serves || r.State == ModelLoaded && h.State == Ready
				comes = comes || r.State == ModelLoading
			}
		}
		switch {
		case serves:
			loaded++
		case comes:
			loading++
		}
	}
	return loaded, loading
}

// severalCopies returns the models with more than one loaded copy, in order.
func severalCopies(s Snapshot) []string {
	copies := map[string]int{}
	for i := range s.Hosts {
		for j := range s.Hosts[i].Residents {
			if r := &s.Hosts[i].Residents[j]; r.State == ModelLoaded {
				copies[r.ID]++
			}
		}
	}
	maps.DeleteFunc(copies, func(_ string, n int) bool { return n < 2 })
	return slices.Sorted(maps.Keys(copies))
}

// spareCopy returns the copy of a model that should go because the others can serve its requests. ok is false if all
// are needed. Once the copy takes no new requests, no further one is spare until its open ones have ended.
//
// A copy is spare if, for the model's idle time, no copy has had more than half of the requests open that it serves at a
// time. Then even two copies could have done with one, and a further copy (WantCopy) is not wanted again immediately. Of n
// copies, the next one goes a share of 1 / n of that time later at the earliest (Redis says so in Needed). The one that
// goes is on the host with the fewest other models and tickets, so that machines are freed; among those the last by name,
// since a StatefulSet frees its last pod first.
func spareCopy(s Snapshot, id string, now time.Time, defaultIdle time.Duration) (spare IdleModel, ok bool) {
	var best *Host
	others := func(h *Host) int { return len(h.Residents) + len(h.Queue) + len(h.OtherTickets) }
	serving, idle := 0, time.Duration(0)
	for i := range s.Hosts {
		h := &s.Hosts[i]
		for j := range h.Residents {
			r := &h.Residents[j]
			if r.Retired == id {
				return IdleModel{}, false
			}
			if r.ID != id || h.State == Lost {
				continue
			}
			limit := cmp.Or(r.Idle, defaultIdle)
			if r.State != ModelLoaded || r.Closed || h.State != Ready || !elapsed(r.Needed, now, limit) {
				return IdleModel{}, false
			}
			serving++
			if !r.Pinned && !r.Reserved && (best == nil || cmp.Or(others(h)-others(best), byLastSlot(h.Name, best.Name)) < 0) {
				best, idle = h, limit
			}
		}
	}
	if serving < 2 || best == nil {
		return IdleModel{}, false
	}
	return IdleModel{best.Name, id, true, Reason{CopySpare, "no copy was more than half full for " + idle.String()}}, true
}

// byLastSlot orders the hosts of a group from the last slot to the first: gpu-10, gpu-9.
func byLastSlot(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(b, a)) }
