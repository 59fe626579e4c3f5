package catalog

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// A Catalog is a checked, immutable set of models, hosts, recipes, defaults and warm-ups. The zero value is empty: it
// resolves no name. See the package comment for how one is made and what may be done with it.
type Catalog struct {
	// Version is the hash of everything else: 16 hex digits, equal for equal content and for nothing else. It is empty
	// in the zero value only.
	Version string `json:"version"`
	// Models, in the order of the file; registered ones come last.
	Models []*Model `json:"models"`
	// Hosts, in the order of the file.
	Hosts []*Host `json:"hosts"`
	// Recipes are the shipped ones with the file's overrides and additions, each complete.
	Recipes recipe.Set `json:"recipes"`
	// Defaults apply where a model or a request says nothing.
	Defaults Defaults `json:"defaults"`
	// Warm are the planned warm-ups.
	Warm []Warmup `json:"warm,omitempty"`

	index index
}

// Defaults apply where a model or a request says nothing.
type Defaults struct {
	// Idle is the idle time of models without one of their own; nil leaves it to the warmer.
	Idle *time.Duration `json:"-"`
	// Models are the ids used for requests that name no model, by the type that the route needs.
	Models map[policy.Type]string `json:"models,omitempty"`
}

// A Warmup keeps a model loaded at planned times.
type Warmup struct {
	// Model is the model's id.
	Model string `json:"model"`
	// Schedule says when the model is to be loaded.
	Schedule Schedule `json:"schedule"`
	// For is how long it stays wanted from then on; above 0.
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

// Idle is the time without traffic after which m is unloaded: its own, else the default; ok is false when neither is
// set and the warmer's setting counts.
func (c *Catalog) Idle(m *Model) (d time.Duration, ok bool) {
	switch {
	case m.Idle != nil:
		return *m.Idle, true
	case c.Defaults.Idle != nil:
		return *c.Defaults.Idle, true
	}
	return 0, false
}

// Policy is m as package policy sees it. An idle time of 0 becomes the shortest possible one, as policy reads 0 as
// "not said".
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
