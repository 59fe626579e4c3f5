package ui

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// What a view shows at most.
const (
	maxHosts   = 500
	maxTickets = 500
)

// Pool is the pool as the page shows it. Times are milliseconds on the pool's clock.
type Pool struct {
	Hosts   []Host   `json:"hosts"`
	Queue   []Ticket `json:"queue"`
	Waiting int      `json:"waiting"`         // requests that wait at this gateway
	More    int      `json:"more,omitempty"`  // hosts and tickets that are not shown
	Stale   bool     `json:"stale,omitempty"` // Redis does not respond
}

// Host is one host's card.
type Host struct {
	Name     string   `json:"name"`
	State    string   `json:"state"`
	Since    int64    `json:"since,omitempty"` // when it started to wake, or the last sign of life of a lost host
	Pending  bool     `json:"pending,omitempty"`
	Boot     string   `json:"boot,omitempty"`     // booting or failed
	Unproven bool     `json:"unproven,omitempty"` // it is not put to sleep before Wake-on-LAN has woken it once
	Price    float64  `json:"price,omitempty"`
	Devices  []Device `json:"devices"`
	Seats    []Seat   `json:"seats,omitempty"`
	Types    []Slots  `json:"types"`
	Loading  string   `json:"loading,omitempty"`
}

// Device is a kind of device, or a single GPU, with its memory in bytes. Budget is 0 if it is unknown.
type Device struct {
	Name   string `json:"name"`
	Used   int64  `json:"used"`
	Budget int64  `json:"budget"`
}

// Seat is the room for models on an NPU.
type Seat struct {
	Type string   `json:"type,omitempty"` // "" for any
	Of   int      `json:"of"`
	By   []string `json:"by"`
}

// Slots are the models of one type on a host, the one that is evicted first at the top.
type Slots struct {
	Type   string  `json:"type"`
	Limit  int     `json:"limit"` // -1: no limit
	Models []Model `json:"models"`
	Victim string  `json:"victim,omitempty"` // model that the next load of the type would stop
	Pinned bool    `json:"pinned,omitempty"` // only pinned models are in its way
}

// Model is a copy of a model on a host.
type Model struct {
	ID       string `json:"id"`
	State    string `json:"state"`
	Retired  bool   `json:"retired,omitempty"`
	Busy     bool   `json:"busy,omitempty"`
	Requests int    `json:"requests,omitempty"`
	Queued   int    `json:"queued,omitempty"` // of them, those that wait for their turn at the engine
	Pinned   bool   `json:"pinned,omitempty"`
	Used     int64  `json:"used"`
	Until    int64  `json:"until,omitempty"` // when it is unloaded if it stays idle; 0: it stays, or unknown
	Memory   int64  `json:"memory,omitempty"`
	Device   string `json:"device"`
}

// Ticket is a queued load or unload, or requests for a model that has no host yet.
type Ticket struct {
	Model    string `json:"model"`
	Kind     string `json:"kind"`
	Host     string `json:"host,omitempty"`
	State    string `json:"state"`
	Place    int    `json:"place,omitempty"`
	Head     bool   `json:"head,omitempty"` // first of its host's queue
	Waiting  int    `json:"waiting"`        // requests at this gateway
	Gateways int    `json:"gateways,omitempty"`
	Since    int64  `json:"since,omitempty"`
	ETA      int64  `json:"eta,omitempty"`  // seconds
	Done     int64  `json:"done,omitempty"` // bytes of the weights
	Total    int64  `json:"total,omitempty"`
	Why      string `json:"why"`
}

// Entry is a model of the catalog.
type Entry struct {
	ID    string `json:"id"`
	Type  string `json:"type"`
	State string `json:"state"`
	Note  string `json:"note,omitempty"`
}

// Source is what views are made of.
type Source struct {
	Snapshot *state.Snapshot
	Stale    bool // Redis does not respond
	Catalog  *catalog.Catalog
	Waiting  map[string]int // requests at this gateway by model
	Evict    policy.EvictionPolicy
	Stage    func(model string) (api.LoadingProgress, bool)        // of a model's load
	Copy     func(h *state.HostRecord, m *state.ModelRecord) Model // of a loaded or retired copy
}

// Pool makes the view of the pool.
func (src Source) Pool() Pool {
	s := src.Snapshot
	out := Pool{Hosts: []Host{}, Queue: []Ticket{}, Stale: src.Stale}
	for _, n := range src.Waiting {
		out.Waiting += n
	}
	decided := map[string]policy.Host{}
	for _, h := range (placement.View{Catalog: src.Catalog, Evict: src.Evict}).Pool(s).Hosts {
		decided[h.Name] = h
	}
	names := slices.Collect(maps.Keys(decided))
	for name := range s.Hosts {
		if _, there := decided[name]; !there { // asleep, and without a way to wake it
			names = append(names, name)
		}
	}
	slices.Sort(names)
	queued := map[string]bool{}
	for i, name := range names {
		rec, h := s.Hosts[name], decided[name]
		if i < maxHosts {
			out.Hosts = append(out.Hosts, src.host(name, rec, h))
		} else {
			out.More++
		}
		if rec == nil {
			continue
		}
		for _, t := range src.queue(rec, h) {
			queued[t.Model] = true
			if len(out.Queue) < maxTickets {
				out.Queue = append(out.Queue, t)
			} else {
				out.More++
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(src.Waiting)) {
		if !queued[id] && len(out.Queue) < maxTickets {
			out.Queue = append(out.Queue, Ticket{Model: id, Kind: "load", State: scheduling.StageQueued, Waiting: src.Waiting[id], Why: "no host has been chosen yet"})
		}
	}
	return out
}

// host makes a card; rec is nil for a host that only the catalog names.
func (src Source) host(name string, rec *state.HostRecord, h policy.Host) Host {
	out := Host{Name: name, State: string(policy.Asleep), Devices: []Device{}, Types: []Slots{}, Loading: h.Loading}
	if entry, there := src.Catalog.Host(name); there {
		out.Price = entry.Price
	}
	if rec != nil {
		out.Unproven = placement.Unproven(src.Catalog, rec)
		out.State, out.Pending, out.Boot = string(rec.State), rec.PowerOffPending(), rec.Boot().State
		switch rec.State {
		case policy.Waking:
			out.Since = state.ParseNumber(rec.Fields["waking_ms"])
		case policy.Lost:
			out.Since = rec.SeenMS
		}
	}
	out.Devices, out.Seats = devicesOf(h), seatsOf(h)
	for _, t := range policy.Types() {
		if slots := src.slots(rec, h, t); len(slots.Models) > 0 {
			out.Types = append(out.Types, slots)
		}
	}
	return out
}

func devicesOf(h policy.Host) []Device {
	out := []Device{}
	for _, d := range []policy.Devices{policy.CPU, policy.GPU, policy.NPU} {
		if !h.Devices.Has(d) {
			continue
		}
		if d == policy.GPU && len(h.GPUMemory) > 1 {
			out = append(out, gpusOf(h)...)
			continue
		}
		dev := Device{Name: d.String(), Budget: h.Budget[d]}
		for _, r := range h.Residents {
			if r.Devices.Has(d) {
				dev.Used += r.Memory
			}
		}
		out = append(out, dev)
	}
	return out
}

// gpusOf lists single GPUs. A model without a choice of GPUs counts on all of them by their size.
func gpusOf(h policy.Host) []Device {
	out := []Device{}
	for _, gpu := range slices.Sorted(maps.Keys(h.GPUMemory)) {
		dev := Device{Name: fmt.Sprintf("gpu:%d", gpu), Budget: h.GPUMemory[gpu]}
		for i := range h.Residents {
			dev.Used += h.Residents[i].OnGPU(gpu, h.GPUMemory)
		}
		out = append(out, dev)
	}
	return out
}

func seatsOf(h policy.Host) []Seat {
	if !h.Devices.Has(policy.NPU) {
		return nil
	}
	by := func(t policy.Type) []string {
		out := []string{}
		for _, r := range h.Residents {
			if r.Devices.Has(policy.NPU) && (t == "" || r.Type == t) {
				out = append(out, r.ID)
			}
		}
		return out
	}
	if len(h.NPUSeats) == 0 {
		return []Seat{{Of: 1, By: by("")}}
	}
	var out []Seat
	for _, t := range policy.Types() {
		if n := h.NPUSeats[t]; n > 0 {
			out = append(out, Seat{string(t), n, by(t)})
		}
	}
	return out
}

// slots lists a type's models in the order in which they would be evicted.
func (src Source) slots(rec *state.HostRecord, h policy.Host, t policy.Type) Slots {
	out := Slots{Type: string(t), Limit: h.Limits.Of(t), Models: []Model{}}
	if rec == nil {
		return out
	}
	residents := slices.DeleteFunc(slices.Clone(h.Residents), func(r policy.Resident) bool { return r.Type != t })
	slices.SortFunc(residents, func(a, b policy.Resident) int { return cmp.Or(cmp.Compare(a.Value, b.Value), policy.ByUse(a, b)) })
	for _, r := range residents {
		m := rec.Models[r.ID]
		if m == nil {
			continue
		}
		row := Model{ID: m.ID, Pinned: r.Pinned, Used: m.UsedMS, Busy: r.Busy()}
		if m.State == policy.ModelLoaded || m.Retired != "" {
			row = src.Copy(rec, m)
		}
		if n := m.Plan().Parallel; n > 0 {
			row.Queued = max(0, r.InFlight-n)
		}
		row.State, row.Retired, row.Requests, row.Memory, row.Device = string(m.State), m.Retired != "", r.InFlight, r.Memory, r.Devices.String()
		out.Models = append(out.Models, row)
	}
	probe := h
	probe.Loading, probe.Queue = "", []policy.Ticket{{ID: "probe", Model: policy.Model{Type: t}}}
	switch step := policy.Next(probe, time.Time{}, 0); {
	case step.Ticket != "" && step.Admission.Decision == policy.DecideRefuse:
		out.Pinned = step.Admission.Refusal.Code == policy.SlotsPinned
	case step.Ticket != "" && len(step.Admission.Evict) > 0:
		out.Victim = step.Admission.Evict[0]
	case len(step.Waits) > 0 && len(step.Waits[0].For) > 0:
		out.Victim = step.Waits[0].For[0]
	}
	return out
}

// Models lists the catalog.
func (src Source) Models() []Entry {
	states := map[string]string{}
	for _, h := range src.Snapshot.Hosts {
		for _, t := range h.Queue {
			if t.Kind == "load" && states[t.Model] == "" {
				states[t.Model] = "queued"
			}
		}
	}
	for _, h := range src.Snapshot.Hosts {
		if h.State == policy.Lost {
			continue // what it held is not known to be there
		}
		for id, m := range h.Models {
			if states[id] != "loaded" && m.Retired == "" {
				states[id] = string(m.State)
			}
		}
	}
	out := make([]Entry, 0, len(src.Catalog.Models))
	for _, m := range src.Catalog.Models {
		out = append(out, Entry{m.ID, string(m.Type), cmp.Or(states[m.ID], "unloaded"), m.Description})
	}
	return out
}

// Notes are what the hosts' machines and drivers say of their failures, by host, for managers.
func (src Source) Notes() map[string]string {
	out := map[string]string{}
	for name, h := range src.Snapshot.Hosts {
		if note := cmp.Or(h.Boot().Reason, h.Error); note != "" {
			out[name] = note
		}
	}
	return out
}
