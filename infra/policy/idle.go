package policy

import (
	"cmp"
	"slices"
	"time"
)

// Defaults are the sweep's settings. A negative duration means never, zero at once.
type Defaults struct {
	Idle      time.Duration // time without use after which a model goes, where the model itself says nothing
	HostIdle  time.Duration // time without activity after which an empty host sleeps
	HostMinUp time.Duration // least time a host stays up once awake
}

// Unload is one idle model of an IdlePlan.
type Unload struct {
	Host   string
	Model  string
	Reason Reason
}

// Sleep is one idle host of an IdlePlan.
type Sleep struct {
	Host   string
	Reason Reason
}

// IdlePlan is what a sweep does: queue unloads, put hosts to sleep. Unloads are ordered by host and then least recent
// use, sleeps by host.
type IdlePlan struct {
	Unload []Unload
	Sleep  []Sleep
}

// Idle decides which models and hosts have been without work for long enough at now.
//
// A model goes when it is loaded on a ready host, serves nothing, is not reserved, is not pinned, no ticket in the pool
// is for it, no load waits for its slot, and its last use (the end of its last request) is its idle time ago. A ready
// host sleeps when it holds no model in any state, no ticket, no load, no open request and no lease, was up for
// HostMinUp, and had no activity for HostIdle. What has no time of use, or no time of its start, is left alone.
//
// A host whose last model goes in this plan is not put to sleep by it. Once the plan's models are draining and its hosts
// draining, the same call plans nothing.
func Idle(s Snapshot, now time.Time, d Defaults) IdlePlan {
	var p IdlePlan
	wanted := ticketed(s)
	for i := range s.Hosts {
		h := &s.Hosts[i]
		if h.State != Ready {
			continue
		}
		var idle []Resident
		for _, r := range h.Residents {
			if !wanted[r.ID] && unused(&r, now, d.Idle) {
				idle = append(idle, r)
			}
		}
		slices.SortFunc(idle, ByUse)
		for _, r := range idle {
			p.Unload = append(p.Unload, Unload{h.Name, r.ID, Reason{ModelIdle, "unused for " + since(now, r.Used)}})
		}
		if sleepDue(h, now, d) {
			p.Sleep = append(p.Sleep, Sleep{h.Name, Reason{HostIdle, "idle for " + since(now, Use(h.UpSince, h.Active))}})
		}
	}
	slices.SortStableFunc(p.Unload, func(a, b Unload) int { return cmp.Compare(a.Host, b.Host) })
	slices.SortFunc(p.Sleep, func(a, b Sleep) int { return cmp.Compare(a.Host, b.Host) })
	return p
}

// ticketed is the set of models that a ticket of any host is for.
func ticketed(s Snapshot) map[string]bool {
	set := map[string]bool{}
	for i := range s.Hosts {
		for j := range s.Hosts[i].Queue {
			set[s.Hosts[i].Queue[j].Model.ID] = true
		}
		for _, id := range s.Hosts[i].Chores {
			set[id] = true
		}
	}
	return set
}

// unused reports whether r may go and has been without use for its idle time, or for byDefault where it names none.
func unused(r *Resident, now time.Time, byDefault time.Duration) bool {
	if r.State != ModelLoaded || r.Busy() || r.Pinned || r.Closed {
		return false
	}
	idle := r.Idle
	if idle == 0 {
		idle = byDefault
	}
	return past(r.Used, now, idle)
}

// sleepDue reports whether h has nothing to stay awake for.
func sleepDue(h *Host, now time.Time, d Defaults) bool {
	return len(h.Residents) == 0 && len(h.Queue) == 0 && len(h.Chores) == 0 && h.Loading == "" && h.InFlight == 0 && h.Leases == 0 &&
		!h.UpSince.IsZero() &&
		past(h.UpSince, now, max(0, d.HostMinUp)) &&
		past(Use(h.UpSince, h.Active), now, d.HostIdle)
}

// past reports whether limit has gone by since from; never for a negative limit or a zero from.
func past(from, now time.Time, limit time.Duration) bool {
	return limit >= 0 && !from.IsZero() && now.Sub(from) >= limit
}

func since(now, from time.Time) string { return now.Sub(from).Round(time.Second).String() }
