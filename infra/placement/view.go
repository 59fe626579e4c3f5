package placement

import (
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// View interprets snapshots with a catalog. Its methods change nothing.
type View struct {
	Catalog *catalog.Catalog
	Evict   policy.EvictionPolicy // how the value of idle models is computed
	// ClosedModel is a model of which every copy has refused the waiting request, so that all count as closed; "" for
	// none.
	ClosedModel string
	Only        []string // hosts to consider; nil: all, and those that only the catalog names
}

// spread is policy.Snapshot.Spread in a large pool: few enough that the hosts after these can sleep.
const spread = 16

// Pool returns the pool as input of decisions. Hosts that are in the catalog but not in the store are asleep. Sleeping
// hosts that are not in the catalog are left out: nothing says how to wake them. A runner's report of its host
// overrides the catalog, except that the labels of both count. The hosts are in no order.
func (v View) Pool(s *state.Snapshot) policy.Snapshot {
	out := policy.Snapshot{Now: time.UnixMilli(s.NowMS), Hosts: make([]policy.Host, 0, len(s.Hosts))}
	if s.Large() {
		out.Spread = spread
	}
	for name, rec := range v.records(s) {
		known, inCatalog := v.Catalog.Host(name)
		if rec.State == policy.Asleep && !inCatalog {
			continue
		}
		out.Hosts = append(out.Hosts, v.host(s, rec, known))
	}
	for _, h := range v.Catalog.Hosts {
		if _, ok := s.Hosts[h.Name]; !ok && v.Only == nil {
			out.Hosts = append(out.Hosts, policy.Host{
				Name: h.Name, Labels: h.Labels, State: policy.Asleep, Devices: h.Devices, Limits: policy.Uniform(1), NPUSeats: h.NPUSeats, Budget: memoryOf(h),
			})
		}
	}
	return out
}

// records returns the hosts to consider.
func (v View) records(s *state.Snapshot) iter.Seq2[string, *state.HostRecord] {
	if v.Only == nil {
		return maps.All(s.Hosts)
	}
	return func(yield func(string, *state.HostRecord) bool) {
		for _, name := range v.Only {
			if rec := s.Hosts[name]; rec != nil && !yield(name, rec) {
				return
			}
		}
	}
}

// memoryOf returns the memory that a host's entry gives to models.
func memoryOf(h *catalog.Host) map[policy.Devices]int64 {
	out := map[policy.Devices]int64{}
	for name, n := range h.Memory {
		if d, err := policy.ParseDevices(name); err == nil {
			out[d] = int64(n)
		}
	}
	return out
}

// host returns one host; known is its catalog entry, nil for none.
func (v View) host(s *state.Snapshot, rec *state.HostRecord, known *catalog.Host) policy.Host {
	h := policy.Host{
		Name: rec.Name, State: rec.State, Labels: rec.Labels, Limits: policy.Uniform(1),
		Active: stamp(rec.ActiveMS),
		// A generation is the token of a registration: its time in microseconds, or slightly more.
		UpSince: stamp(int64(rec.Generation / 1000)),
	}
	h.Budget, h.GPUMemory = ParseMemory(rec.Fields["memory_budget"])
	h.Devices, _ = policy.ParseDevices(rec.Devices) // a runner of another version may know more devices: those known here count
	if l, err := policy.ParseLimits(rec.Limits); err == nil {
		h.Limits = l
	}
	if rec.Seats != "" {
		_ = json.Unmarshal([]byte(rec.Seats), &h.NPUSeats) // unreadable seats count as none: one NPU model
	}
	price := 0.0
	if known != nil {
		price = known.Price
		if known.Idle != nil {
			h.Idle = max(time.Duration(*known.Idle), 1) // 0 is unset there
		}
		h.Labels = slices.Concat(rec.Labels, known.Labels)
		if h.Devices == 0 {
			h.Devices = known.Devices
		}
		if rec.Seats == "" {
			h.NPUSeats = known.NPUSeats
		}
	}
	now := time.UnixMilli(s.NowMS)
	for _, id := range slices.Sorted(maps.Keys(rec.Models)) {
		m := rec.Models[id]
		r := v.resident(m)
		r.Value = v.Evict.Value(time.Duration(m.LoadMS)*time.Millisecond, price, now.Sub(r.Used))
		h.InFlight += r.InFlight
		h.Residents = append(h.Residents, r)
	}
	for _, t := range rec.Queue {
		switch {
		case t.Kind != "load", t.PullOnly:
			h.OtherTickets = append(h.OtherTickets, t.Model)
		case t.ID == rec.Loading:
			h.Loading = t.Model
		default:
			h.Queue = append(h.Queue, policy.Ticket{ID: t.ID, Model: v.queued(s, rec, t)})
		}
	}
	return h
}

func (v View) resident(m *state.ModelRecord) policy.Resident {
	d, _ := policy.ParseDevices(m.Device)
	_, gpus := ParseMemory(m.Fields["cards"])
	r := policy.Resident{
		ID: m.ID, Type: policy.Type(m.Type), Devices: d, State: m.State, Pinned: m.Pinned,
		InFlight: m.InFlight, Closed: m.ID == v.ClosedModel, Used: stamp(m.UsedMS), Needed: stamp(m.NeededMS), Retired: m.Retired, Memory: m.Memory, GPUMemory: gpus,
	}
	if m.Retired != "" && m.InFlight > 0 { // its runner counts it in the same way: its slot will not be free soon
		r.State, r.Closed = policy.ModelLoaded, true
	}
	if entry, ok := v.Catalog.Model(m.ID); ok {
		r.Idle = v.Catalog.Policy(entry).Idle
	}
	return r
}

// queued returns a ticket's model as it will be on the ticket's host. A model that left the catalog has only its id.
func (v View) queued(s *state.Snapshot, rec *state.HostRecord, t state.TicketRecord) policy.Model {
	m, rc, ok := v.modelAndRecipe(t.Model)
	if !ok {
		return policy.Model{ID: t.Model}
	}
	out := v.Catalog.Policy(m)
	if l, err := Resolve(m, rc, v.sources(s, rec, m.ID, t.Options)); err == nil {
		out.Devices, out.GPUs = l.Model.Devices, l.GPUs(rc, rec.Fields["gpu_api"])
		if m.Memory == 0 {
			out.Memory = readNeed(rec, m.ID, l.Digest(), s.NowMS).Bytes
		}
	}
	return out
}

// Model returns a catalog's model as it must be placed, with what it takes on each host. options are those of an
// explicit load request, "" for a load that an inference request starts. A model that left the catalog has only its id.
func (v View) Model(s *state.Snapshot, id, options string) policy.Model {
	m, rc, ok := v.modelAndRecipe(id)
	if !ok {
		return policy.Model{ID: id}
	}
	out := v.Catalog.Policy(m)
	if l, err := Resolve(m, rc, v.sources(s, nil, id, options)); err == nil {
		out.Devices = l.Model.Devices
	}
	byOptions := map[string]*loadOnHost{} // by the options of a host's runner, which many hosts share
	for name, rec := range v.records(s) {
		flags := rec.Options
		w := byOptions[flags]
		if w == nil {
			l, err := Resolve(m, rc, v.sources(s, rec, id, options))
			if err != nil {
				break // the options are invalid: the runner reports why
			}
			w = &loadOnHost{load: l, digest: l.Digest()}
			byOptions[flags] = w
		}
		n := policy.Need{Devices: w.load.Model.Devices, Memory: int64(m.Memory), GPUs: w.load.GPUs(rc, rec.Fields["gpu_api"])}
		if m.Memory == 0 {
			if found := readNeed(rec, id, w.digest, s.NowMS); found.Bytes > 0 {
				n.Memory, n.Parts = found.Bytes, found.Parts
			}
		}
		if n.Devices != out.Devices || n.Memory != out.Memory || n.Parts != "" || n.GPUs != out.GPUs {
			if out.NeedByHost == nil {
				out.NeedByHost = map[string]policy.Need{}
			}
			out.NeedByHost[name] = n
		}
	}
	return out
}

// loadOnHost is a load as hosts whose runners have the same options resolve it.
type loadOnHost struct {
	load   Load
	digest string
}

func (v View) modelAndRecipe(id string) (*catalog.Model, *recipe.Recipe, bool) {
	m, ok := v.Catalog.Model(id)
	if !ok {
		return nil, nil, false
	}
	rc, ok := v.Catalog.Recipes[m.Recipe]
	return m, &rc, ok
}

// sources returns the sources of a load's options on a host; rec is nil for a host that never registered.
func (v View) sources(s *state.Snapshot, rec *state.HostRecord, id, request string) Sources {
	from := Sources{Saved: s.Saved[id], Runtime: s.Runtime, Request: request}
	if rec != nil {
		from.Flags, _ = options(rec.Options) // unreadable: none
	}
	return from
}

// stamp converts a time in ms since the epoch; 0 is the zero time.
func stamp(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Unproven reports whether a host that is ready must not be put to sleep unattended: it is woken by Wake-on-LAN, which has
// not worked yet.
func Unproven(c *catalog.Catalog, h *state.HostRecord) bool {
	entry, ok := c.Host(h.Name)
	return ok && entry.Driver == catalog.DriverWoL && h.State == policy.Ready && !h.Proven()
}
