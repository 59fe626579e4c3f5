package catalog

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// A Catalog is a checked, immutable set of models, hosts, recipes, defaults and warm-ups. The zero value is empty: it
// resolves no name. The package comment says how to make and use one.
type Catalog struct {
	// Version is the hash of everything else: 16 hex digits, equal for equal content only. It is empty only in the zero
	// value.
	Version string `json:"version"`
	// Models, in the order of the file; registered ones come last.
	Models []*Model `json:"models"`
	// Hosts, in the order of the file.
	Hosts []*Host `json:"hosts"`
	// Recipes are the shipped ones with the file's overrides and additions, each complete.
	Recipes recipe.Set `json:"recipes"`
	// Defaults apply where a model or a request sets nothing.
	Defaults Defaults `json:"defaults"`
	// Warm are the planned warm-ups.
	Warm []Warmup `json:"warm,omitempty"`

	index index
}

// Defaults apply where a model or a request sets nothing.
type Defaults struct {
	// Idle is the idle time of models that set none; nil leaves it to the warmer.
	Idle *time.Duration `json:"-"`
	// Models are the ids used for requests that name no model, by the type that the route needs.
	Models map[policy.Type]string `json:"models,omitempty"`
}

// A Warmup keeps a model loaded at planned times.
type Warmup struct {
	// Model is the model's id.
	Model string `json:"model"`
	// Schedule says when to load the model.
	Schedule Schedule `json:"schedule"`
	// For is how long the model stays wanted from then on; above 0.
	For time.Duration `json:"-"`
}

// Active reports whether the model is wanted at now: whether the schedule fired within the last For. The schedule is
// read in now's location.
func (w Warmup) Active(now time.Time) bool {
	fired := w.Schedule.Next(now.Add(-w.For))
	return !fired.IsZero() && !fired.After(now)
}

// Model returns the model with this id; ok is false when there is none.
func (c *Catalog) Model(id string) (m *Model, ok bool) {
	m, ok = c.index.byID[id]
	return m, ok
}

// Host returns the host with this name; ok is false when there is none.
func (c *Catalog) Host(name string) (h *Host, ok bool) {
	h, ok = c.index.hosts[name]
	return h, ok
}

// HostsFor lists the hosts that m may run on, in the order to try. It is empty when the catalogue names no hosts.
func (c *Catalog) HostsFor(m *Model) []*Host {
	var out []*Host
	seen := map[string]bool{}
	take := func(h *Host) {
		if h.Has(m.Devices) && !seen[h.Name] {
			seen[h.Name] = true
			out = append(out, h)
		}
	}
	if len(m.Hosts) == 0 {
		for _, h := range c.Hosts {
			take(h)
		}
	}
	for _, name := range m.Hosts {
		for _, h := range c.Hosts {
			if h.Answers(name) {
				take(h)
			}
		}
	}
	return out
}

// Idle returns how long m may be without traffic before it is unloaded: its own time, else the default. ok is false if
// neither is set, and then the warmer's setting counts.
func (c *Catalog) Idle(m *Model) (d time.Duration, ok bool) {
	switch {
	case m.Idle != nil:
		return *m.Idle, true
	case c.Defaults.Idle != nil:
		return *c.Defaults.Idle, true
	}
	return 0, false
}

// Policy returns m as package policy sees it. An idle time of 0 becomes the shortest possible one, because policy reads
// 0 as unset.
func (c *Catalog) Policy(m *Model) policy.Model {
	idle, set := c.Idle(m)
	if set {
		idle = max(idle, 1)
	}
	return policy.Model{
		ID: m.ID, Type: m.Type, Devices: m.Devices, Pinned: m.Pin, Memory: m.Memory, Hosts: m.Hosts,
		Max: m.Replicas.Max, Idle: idle,
	}
}
