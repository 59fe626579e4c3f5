package policy

import (
	"cmp"
	"slices"
	"time"
)

// SweepSettings are the settings of a sweep. A negative duration means never, zero means immediately.
type SweepSettings struct {
	Idle      time.Duration // how long a model can be unused before it is unloaded, unless the model sets its own time
	HostIdle  time.Duration // how long an empty host can be without activity before it sleeps, unless the host sets its own time
	HostMinUp time.Duration // minimum time that a host stays awake
}

// IdleModel is a copy of a model that an IdleDecision unloads.
type IdleModel struct {
	Host   string
	Model  string
	Spare  bool // may have open requests, which it finishes first
	Reason Reason
}

// IdleHost is a host that an IdleDecision puts to sleep.
type IdleHost struct {
	Host   string
	Reason Reason
}

// IdleDecision is what a sweep does: queue unloads and put hosts to sleep. Unload is ordered by host and then by least
// recent use, Sleep by host.
type IdleDecision struct {
	Unload []IdleModel
	Sleep  []IdleHost
}

// Idle decides which models and hosts have been idle for long enough at now.
//
// A model is unloaded if it is loaded on a ready host, serves nothing, is neither reserved nor pinned, no ticket in the
// pool is for it, it is not closed, and its last use ([Resident.Used]) is at least its idle time ago. A ready host
// sleeps if it holds no model in any state, no ticket, no load and no open request, was up for HostMinUp, and had no
// activity for HostIdle. Models without a time of use, and hosts without a start time, are ignored.
//
// A decision that unloads a host's last model does not put the host to sleep. Once those models are stopping and those
// hosts draining, the same call returns an empty decision.
//
// A model with several copies also loses those that it does not need, one at a time (spareCopy).
func Idle(s Snapshot, now time.Time, settings SweepSettings) IdleDecision {
	var d IdleDecision
	wanted := ticketed(s)
	for i := range s.Hosts {
		h := &s.Hosts[i]
		if h.State != Ready {
			continue
		}
		var idle []Resident
		for _, r := range h.Residents {
			if !wanted[r.ID] && isIdle(&r, now, settings.Idle) {
				idle = append(idle, r)
			}
		}
		slices.SortFunc(idle, ByUse)
		for _, r := range idle {
			d.Unload = append(d.Unload, IdleModel{h.Name, r.ID, false, Reason{ModelIdle, "unused for " + since(now, r.Used)}})
		}
		if isSleepDue(h, now, settings) {
			d.Sleep = append(d.Sleep, IdleHost{h.Name, Reason{HostIdle, "idle for " + since(now, Later(h.UpSince, h.Active))}})
		}
	}
	for _, id := range severalCopies(s) {
		idle := slices.ContainsFunc(d.Unload, func(u IdleModel) bool { return u.Model == id })
		if spare, ok := spareCopy(s, id, now, settings.Idle); ok && !idle && !wanted[id] {
			d.Unload = append(d.Unload, spare)
		}
	}
	slices.SortStableFunc(d.Unload, func(a, b IdleModel) int { return cmp.Compare(a.Host, b.Host) })
	slices.SortFunc(d.Sleep, func(a, b IdleHost) int { return cmp.Compare(a.Host, b.Host) })
	return d
}

// ticketed returns the set of models that have a ticket on any host.
func ticketed(s Snapshot) map[string]bool {
	set := map[string]bool{}
	for i := range s.Hosts {
		for j := range s.Hosts[i].Queue {
			set[s.Hosts[i].Queue[j].Model.ID] = true
		}
		for _, id := range s.Hosts[i].OtherTickets {
			set[id] = true
		}
	}
	return set
}

// isIdle reports whether r can be unloaded and has been unused for its idle time, or for defaultIdle if it sets none.
func isIdle(r *Resident, now time.Time, defaultIdle time.Duration) bool {
	if r.State != ModelLoaded || r.Busy() || r.Pinned || r.Closed {
		return false
	}
	return elapsed(r.Used, now, cmp.Or(r.Idle, defaultIdle))
}

// isSleepDue reports whether h has no reason to stay awake.
func isSleepDue(h *Host, now time.Time, s SweepSettings) bool {
	return len(h.Residents) == 0 && len(h.Queue) == 0 && len(h.OtherTickets) == 0 && h.Loading == "" && h.InFlight == 0 &&
		!h.UpSince.IsZero() &&
		elapsed(h.UpSince, now, s.HostMinUp) &&
		elapsed(Later(h.UpSince, h.Active), now, cmp.Or(h.Idle, s.HostIdle))
}

// elapsed reports whether limit has passed since from. It is false for a negative limit or a zero from.
func elapsed(from, now time.Time, limit time.Duration) bool {
	return limit >= 0 && !from.IsZero() && now.Sub(from) >= limit
}

func since(now, from time.Time) string { return now.Sub(from).Round(time.Second).String() }
