package sweep

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// idleTimes reads the idle times set at run time: model → ms, negative for never. An unreadable one counts as not set.
func idleTimes(table map[string]string) map[string]time.Duration {
	out := make(map[string]time.Duration, len(table))
	for model, text := range table {
		ms, err := strconv.ParseInt(text, 10, 64)
		switch {
		case err != nil:
		case ms < 0:
			out[model] = -1
		default:
			out[model] = max(time.Duration(ms)*time.Millisecond, 1)
		}
	}
	return out
}

// view is the pool as decisions read it: what Redis holds, with the catalogue's hosts and idle times. Hosts that the
// catalogue names and Redis does not are asleep.
func (r *run) view(s *state.Snapshot) policy.Snapshot {
	now := r.now(s)
	warm := r.warmNow(now)
	out := policy.Snapshot{Revision: s.Revision, Now: now}
	for _, name := range slices.Sorted(maps.Keys(s.Hosts)) {
		known, _ := r.catalog.Host(name)
		out.Hosts = append(out.Hosts, r.host(s.Hosts[name], known, warm))
	}
	for _, h := range r.catalog.Hosts {
		if s.Hosts[h.Name] == nil {
			out.Hosts = append(out.Hosts, r.host(&state.HostRecord{Name: h.Name, State: string(policy.Asleep)}, h, warm))
		}
	}
	return out
}

// host is one host; known is its catalogue entry, nil for none. What its runner said goes before the catalogue.
func (r *run) host(rec *state.HostRecord, known *catalog.Host, warm map[string]bool) policy.Host {
	h := policy.Host{
		Name: rec.Name, State: policy.HostState(rec.State), Labels: rec.Labels, Limits: policy.Uniform(1),
		Active: stamp(rec.ActiveMS),
		// A generation is a token given at registration, and tokens are never behind the clock in microseconds.
		UpSince: stamp(int64(rec.Generation / 1000)),
	}
	h.Devices, _ = policy.ParseDevices(rec.Devices) // a newer runner may know more devices: those shared count
	if l, err := policy.ParseLimits(rec.Limits); err == nil {
		h.Limits = l
	}
	if rec.Seats != "" {
		_ = json.Unmarshal([]byte(rec.Seats), &h.NPUSeats) // unreadable: one NPU model
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
		m := r.resident(rec.Models[id], warm[id])
		h.InFlight += m.InFlight
		h.Residents = append(h.Residents, m)
	}
	for _, t := range rec.Queue {
		if t.ID == rec.Loading {
			h.Loading = t.Model
			continue
		}
		h.Queue = append(h.Queue, policy.Ticket{ID: t.ID, Model: r.model(t.Model)})
	}
	return h
}

func (r *run) resident(m *state.ModelRecord, warm bool) policy.Resident {
	d, _ := policy.ParseDevices(m.Device)
	out := policy.Resident{
		ID: m.ID, Type: policy.Type(m.Type), Devices: d, State: policy.ModelState(m.State), Pinned: m.Pinned, InFlight: m.InFlight,
		Used: stamp(m.UsedMS), Memory: m.Memory, Idle: r.model(m.ID).Idle,
	}
	if keep, set := r.keep[m.ID]; set {
		out.Idle = keep
	}
	if warm {
		out.Idle = -1
	}
	return out
}

// model is the catalogue's view of a model; one that left it has its id alone.
func (r *run) model(id string) policy.Model {
	if m, ok := r.catalog.Model(id); ok {
		return r.catalog.Policy(m)
	}
	return policy.Model{ID: id}
}

// stamp is a time in ms since the epoch, zero for none.
func stamp(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
