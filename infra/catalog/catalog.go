package catalog

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"reveille/infra/jsonscan"
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
	// Any are names that each stand for the first loaded of several models of one type or, if none is loaded, for the
	// first.
	Any map[string]recipe.List[string] `json:"any,omitempty"`
	// Background recognizes requests that no person waits for. The first rule that fits decides.
	Background []BackgroundRule `json:"background,omitempty"`
	// DailyHostHours is how many hours all hosts together may be awake on a day of UTC before no further one is woken; 0
	// is no limit.
	DailyHostHours float64 `json:"daily_host_hours,omitempty"`
	// BatchHours is when the lines of batches may wake hosts and load models, in the gateway's time zone.
	BatchHours *Period `json:"batch_hours,omitempty"`

	index index
}

// Defaults apply where a model or a request sets nothing.
type Defaults struct {
	// Idle is the idle time of models that set none.
	Idle *Duration `json:"idle,omitempty"`
	// MinLoaded is that of models that set none.
	MinLoaded *Duration `json:"min_loaded,omitempty"`
	// Models are the models of each type for requests that name none.
	Models map[policy.Type]string `json:"models,omitempty"`
}

// A Warmup keeps a model loaded at planned times.
type Warmup struct {
	// Model is the model's name.
	Model string `json:"model"`
	// Schedule is when to load the model: five fields as in cron, such as 0 8 * * 1-5.
	Schedule Schedule `json:"schedule"`
	// For is how long the model stays loaded from then on, at most 168h.
	For Duration `json:"for"`
}

// Active reports whether the model is wanted at now: whether the schedule fired within the last For. The schedule is
// read in now's location.
func (w Warmup) Active(now time.Time) bool {
	return (&Period{w.Schedule, w.For}).Active(now)
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

// HostsFor lists the hosts that m may run on, in the order to try. It is empty when the catalog names no hosts.
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
		return time.Duration(*m.Idle), true
	case c.Defaults.Idle != nil:
		return time.Duration(*c.Defaults.Idle), true
	}
	return 0, false
}

// MinLoaded is how long m stays loaded before it makes room for others.
func (c *Catalog) MinLoaded(m *Model) time.Duration {
	if d := cmp.Or(m.MinLoaded, c.Defaults.MinLoaded); d != nil {
		return time.Duration(*d)
	}
	return 0
}

// Policy returns m as package policy sees it. An idle time of 0 becomes the shortest possible one, because policy reads
// 0 as unset.
func (c *Catalog) Policy(m *Model) policy.Model {
	idle, set := c.Idle(m)
	if set {
		idle = max(idle, 1)
	}
	return policy.Model{
		ID: m.ID, Type: m.Type, Devices: m.Devices, Pinned: m.Pin, Memory: int64(m.Memory), Hosts: m.Hosts,
		Max: m.Replicas.Max, Idle: idle,
	}
}

// Outdated reports whether an engine that was loaded for a model under the old catalog must be reloaded or unloaded
// under the new one: the model differs in a field that engines are started with, the content of its recipe changed, or
// the new catalog lacks it. It compares only that model.
func Outdated(old, new *Catalog, id string) bool {
	a, b := old.index.byID[id], new.index.byID[id]
	if a == nil || b == nil {
		return true
	}
	started := func(c *Catalog, m *Model) []any { // the published form, which does not depend on who read it
		return []any{
			m.Type, c.Recipes[m.Recipe], m.Checkpoint, m.SHA256, m.MMProj, m.MMCache, m.Conversations, m.Devices,
			m.GPUConstraint(), m.Options,
		}
	}
	x, errX := json.Marshal(started(old, a))
	y, errY := json.Marshal(started(new, b))
	return errX != nil || errY != nil || !bytes.Equal(x, y)
}

// With returns a catalog with more models: those that a client registered ("user.x"). They come after the models of
// the file and are checked as if they were in it. They may leave Type empty, which their labels then decide. A model
// whose id exists already replaces that one. The error is of type [Problems]. c and the arguments are not changed.
func (c *Catalog) With(models ...Model) (*Catalog, error) {
	out := *c
	out.Models = make([]*Model, 0, len(c.Models)+len(models))
	for _, m := range c.Models {
		if !slices.ContainsFunc(models, func(x Model) bool { return x.ID == m.ID }) {
			out.Models = append(out.Models, m.clone())
		}
	}
	for i := range models {
		m := models[i].clone()
		m.Registered = true
		m.Type = cmp.Or(m.Type, typeOfLabels(m.Labels))
		out.Models = append(out.Models, m)
	}
	out.Hosts = make([]*Host, len(c.Hosts))
	for i, h := range c.Hosts {
		copied := *h
		out.Hosts[i] = &copied
	}
	out.Defaults.Models = maps.Clone(c.Defaults.Models)
	out.Warm = slices.Clone(c.Warm)
	out.Any = maps.Clone(c.Any) // its lists have ids already
	out.Background = slices.Clone(c.Background)
	r := &report{}
	if r.check(&out); len(r.problems) == 0 {
		r.seal(&out)
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return &out, nil
}

// WithLocalHost returns the catalog with this machine as its only host if it names no host, else c itself. The error,
// of type [Problems], lists the models that name another host.
func (c *Catalog) WithLocalHost(name string, labels ...string) (*Catalog, error) {
	if len(c.Hosts) > 0 {
		return c, nil
	}
	out := *c
	out.Hosts = []*Host{{Name: name, Driver: DriverLocal, Labels: labels}}
	return out.With()
}

// seal completes a catalog whose content is final, or adds a problem.
func (r *report) seal(c *Catalog) {
	c.buildIndex()
	c.Version = ""
	text, err := c.Marshal()
	if err != nil {
		r.problems = append(r.problems, Problem{File: r.file, Text: "a number is not finite: " + err.Error()})
		return
	}
	sum := sha256.Sum256(text)
	c.Version = hex.EncodeToString(sum[:8])
}

// Marshal writes the catalog as JSON, in its published form. Equal catalogs give equal bytes.
func (c *Catalog) Marshal() ([]byte, error) {
	text, err := jsonscan.Marshal(c) // recipes hold < > & in their patterns
	if err != nil {
		return nil, fmt.Errorf("catalog: marshal: %w", err)
	}
	return text, nil
}

// Unmarshal reads Marshal's output and checks it as Parse checks a file, so that a damaged text is never partly used.
// It ignores unknown members, because a newer program may have written them; the version stays that of the text.
func Unmarshal(data []byte) (*Catalog, error) {
	c := &Catalog{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("catalog: unmarshal: %w", err)
	}
	version := c.Version
	if version == "" || len(c.Recipes) == 0 || slices.Contains(c.Models, nil) || slices.Contains(c.Hosts, nil) {
		return nil, errors.New("catalog: unmarshal: it is not a catalog")
	}
	for name, r := range c.Recipes {
		if r.Name != name {
			return nil, fmt.Errorf("catalog: unmarshal: recipe %q is filed under %q", r.Name, name)
		}
		if err := r.Validate(); err != nil { // which also restores the kinds of number that JSON does not know
			return nil, fmt.Errorf("catalog: unmarshal: %w", err)
		}
	}
	r := &report{}
	if r.check(c); len(r.problems) > 0 {
		return nil, r.problems
	}
	c.buildIndex()
	c.Version = version
	return c, nil
}
