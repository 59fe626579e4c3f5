package catalog

import (
	"maps"
	"slices"
)

// With returns a catalogue with more models: those that a client registered ("user.x"). They come after the models of
// the file and are checked as if they were in it. They may leave Type empty, which their labels then decide
// ([typeOfLabels]). A model whose id exists already replaces that one. The error is of type [Problems]. c and the
// arguments are not changed.
func (c *Catalog) With(models ...Model) (*Catalog, error) {
	d := draft{Catalog: *c}
	d.Models = make([]*Model, 0, len(c.Models)+len(models))
	for _, m := range c.Models {
		if !slices.ContainsFunc(models, func(x Model) bool { return x.ID == m.ID }) {
			d.Models = append(d.Models, m.clone())
		}
	}
	for i := range models {
		m := models[i].clone()
		m.Registered = true
		if m.Type == "" {
			m.Type = typeOfLabels(m.Labels)
		}
		if m.MMCache == "" {
			m.MMCache = SharePerKey
		}
		m.Replicas.Max = max(m.Replicas.Max, 1)
		d.Models = append(d.Models, m)
	}
	d.Hosts = make([]*Host, len(c.Hosts))
	for i, h := range c.Hosts {
		copied := *h
		d.Hosts[i] = &copied
	}
	d.Defaults.Models = maps.Clone(c.Defaults.Models)
	d.Warm = slices.Clone(c.Warm)
	rep := &report{at: map[yamlPath]position{}}
	if check(&d, rep); len(rep.problems) > 0 {
		return nil, rep.problems
	}
	out := d.Catalog
	out.seal()
	return &out, nil
}

// WithLocalHost returns the catalogue with this machine as its only host if it names no host, else c itself. The error,
// of type [Problems], lists the models that name another host.
func (c *Catalog) WithLocalHost(name string, labels ...string) (*Catalog, error) {
	if len(c.Hosts) > 0 {
		return c, nil
	}
	out := *c
	out.Hosts = []*Host{{Name: name, Driver: DriverLocal, Labels: labels}}
	return out.With()
}

// clone returns a copy that a check may write to without changing the original.
func (m *Model) clone() *Model {
	out := *m
	out.Options = m.Options.Clone()
	out.Fallback = slices.Clone(m.Fallback)
	return &out
}
