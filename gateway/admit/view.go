package admit

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// view turns what the store holds into what decisions read. Hosts that the catalogue names and the store does not are
// asleep; sleeping hosts that nobody knows how to wake are left out. Copies of refused, if not "", count as closed; evict says
// what idle models are worth.
func view(s *state.Snapshot, c *catalog.Catalog, refused string, evict policy.Eviction) policy.Snapshot {
	out := policy.Snapshot{Revision: s.Revision, Now: time.UnixMilli(s.NowMS)}
	for _, name := range slices.Sorted(maps.Keys(s.Hosts)) {
		rec := s.Hosts[name]
		known, inCatalog := c.Host(name)
		if rec.State == string(policy.Asleep) && rec.Driver == "" && !inCatalog {
			continue
		}
		h := hostView(rec, known, c, refused)
		value(&h, rec, known, evict, out.Now)
		out.Hosts = append(out.Hosts, h)
	}
	for _, h := range c.Hosts {
		if _, there := s.Hosts[h.Name]; !there {
			out.Hosts = append(out.Hosts, policy.Host{
				Name: h.Name, Labels: h.Labels, State: policy.Asleep, Devices: h.Devices, Limits: policy.Uniform(1), NPUSeats: h.NPUSeats,
			})
		}
	}
	return out
}

// hostView is one host; known is its catalogue entry, nil for none. What its runner said goes before what the
// catalogue says.
func hostView(rec *state.HostRecord, known *catalog.Host, c *catalog.Catalog, refused string) policy.Host {
	h := policy.Host{
		Name: rec.Name, State: policy.HostState(rec.State), Labels: rec.Labels, Active: time.UnixMilli(rec.ActiveMS),
	}
	h.Devices, _ = policy.ParseDevices(rec.Devices) // a runner of another version may know more devices: those it shares count
	if l, err := policy.ParseLimits(rec.Limits); err == nil {
		h.Limits = l
	} else {
		h.Limits = policy.Uniform(1)
	}
	if rec.Seats != "" {
		_ = json.Unmarshal([]byte(rec.Seats), &h.NPUSeats) // unreadable seats are no seats: one NPU model
	}
	if known != nil {
		h.Labels = slices.Concat(rec.Labels, known.Labels)
		if h.Devices == 0 {
			h.Devices = known.Devices
		}
		if rec.Seats == "" {
			h.NPUSeats = known.NPUSeats
		}
	}
	for _, id := range slices.Sorted(maps.Keys(rec.Models)) {
		r := residentView(rec.Models[id])
		r.Closed = id == refused
		h.InFlight += r.InFlight
		h.Residents = append(h.Residents, r)
	}
	for _, t := range rec.Queue {
		switch {
		case t.Kind != "load", t.PullOnly:
		case t.ID == rec.Loading:
			h.Loading = t.Model
		default:
			h.Queue = append(h.Queue, policy.Ticket{ID: t.ID, Model: modelView(c, t.Model)})
		}
	}
	return h
}

// value says what sparing each model of a host is worth, by the loads that its runner measured.
func value(h *policy.Host, rec *state.HostRecord, known *catalog.Host, evict policy.Eviction, now time.Time) {
	price := 0.0
	if known != nil {
		price = known.Price
	}
	for i := range h.Residents {
		r := &h.Residents[i]
		r.Value = evict.Value(time.Duration(rec.Models[r.ID].LoadMS)*time.Millisecond, price, now.Sub(r.Used))
	}
}

func residentView(m *state.ModelRecord) policy.Resident {
	d, _ := policy.ParseDevices(m.Device)
	return policy.Resident{
		ID: m.ID, Type: policy.Type(m.Type), Devices: d, State: policy.ModelState(m.State), Pinned: m.Pinned,
		InFlight: m.InFlight, Used: time.UnixMilli(m.UsedMS), Memory: m.Memory,
	}
}

// modelView is the model as decisions see it; one that left the catalogue has its id alone.
func modelView(c *catalog.Catalog, id string) policy.Model {
	m, ok := c.Model(id)
	if !ok {
		return policy.Model{ID: id}
	}
	return c.Policy(m)
}
