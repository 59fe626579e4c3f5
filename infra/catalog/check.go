package catalog

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// checker checks that the parts of a draft are consistent, and completes the draft: it turns names into ids, normalises
// options and fills in devices. It is idempotent.
type checker struct {
	*report
	d      *draft
	owners map[string]*Model // id or alias -> model
	// unjudged is set if a model's devices are unknown: then no host can be called useless.
	unjudged bool
}

func check(d *draft, r *report) {
	c := checker{report: r, d: d, owners: map[string]*Model{}}
	for _, m := range d.Models {
		c.fillIn(m)
	}
	c.names()
	for _, m := range d.Models {
		c.model(m, modelPath(m.ID))
	}
	for _, h := range d.Hosts {
		c.host(h, yamlPath("hosts").child(h.Name))
	}
	c.placement()
	c.defaults()
	for i, w := range d.Warm {
		c.warmup(&w, yamlPath("warm").index(i))
		d.Warm[i] = w
	}
}

// fillIn sets the defaults of an entry of the models file: type llm, and recipe llamacpp for a GGUF file.
func (c *checker) fillIn(m *Model) {
	if m.Registered {
		return
	}
	m.Type = cmp.Or(m.Type, policy.LLM)
	if _, ok := c.d.Recipes[recipe.LlamaCpp]; ok && m.Recipe == "" && strings.HasSuffix(strings.ToLower(m.Checkpoint), ".gguf") {
		m.Recipe = recipe.LlamaCpp
	}
}

func modelPath(id string) yamlPath { return yamlPath("models").child(id) }

// names checks that each name has one owner.
func (c *checker) names() {
	for _, m := range c.d.Models {
		if !ValidModelName(m.ID) {
			c.add(modelPath(m.ID), modelNameHint, "bad model name %q", clip(m.ID))
		}
		if c.owners[m.ID] != nil {
			c.add(modelPath(m.ID), "", "there is another model of this name")
		}
		c.owners[m.ID] = m
	}
	for _, m := range c.d.Models {
		for i, alias := range m.Aliases {
			p := modelPath(m.ID).child("aliases").index(i)
			switch owner := c.owners[alias]; {
			case !ValidModelName(alias):
				c.add(p, modelNameHint, "bad alias %q", clip(alias))
			case owner == nil:
				c.owners[alias] = m
			case owner == m:
			case owner.ID == alias:
				c.add(p, "", "alias %q is the name of another model", alias)
			default:
				c.add(p, "an alias has one owner", "alias %q belongs to %s already", alias, owner.ID)
			}
		}
	}
}

// known returns the model that a reference names, or reports a problem.
func (c *checker) known(p yamlPath, name string) *Model {
	m := c.owners[name]
	if m == nil {
		c.add(p, didYouMean(name, slices.Sorted(maps.Keys(c.owners))), "unknown model %q", clip(name))
	}
	return m
}

func (c *checker) model(m *Model, p yamlPath) {
	if c.typeOK(p.child("type"), string(m.Type)) {
		for i, name := range m.Fallback {
			at := p.child("fallback").index(i)
			switch f := c.known(at, name); {
			case f == nil:
			case f == m:
				c.add(at, "", "a model is no fallback for itself")
			case f.Type != m.Type && f.Type.Valid():
				c.add(at, "", "%s is of type %s, not %s", f.ID, f.Type, m.Type)
			default:
				m.Fallback[i] = f.ID
			}
		}
	}
	if m.MMCache != SharePerKey && m.MMCache != ShareAll && m.MMCache != ShareNone {
		c.add(p.child("mm_cache"), "want key, pool or none", "unknown scope %q", clip(string(m.MMCache)))
	}
	switch m.Conversations {
	case "", SharePerKey, ShareAll, ShareNone:
	default:
		c.add(p.child("conversations"), "want key, pool or none", "unknown scope %q", clip(string(m.Conversations)))
	}
	for _, f := range [...]struct{ name, value string }{{"checkpoint", m.Checkpoint}, {"mmproj", m.MMProj}} {
		if wrong := ParseCheckpoint(f.value).wrong(); f.value != "" && wrong != "" {
			c.add(p.child(f.name), "", "%s", wrong)
		}
	}
	if m.SHA256 != "" {
		c.sum(m, p.child("sha256"))
	}
	if rec, ok := c.recipe(m, p); ok {
		c.fits(m, rec, p)
	} else {
		c.unjudged = true
	}
}

// sum checks the format of a checksum, and that it belongs to weights that are fetched.
func (c *checker) sum(m *Model, p yamlPath) {
	m.SHA256 = strings.ToLower(m.SHA256)
	if raw, err := hex.DecodeString(m.SHA256); err != nil || len(raw) != sha256.Size {
		c.add(p, "want 64 hex digits", "%q is no SHA-256", clip(m.SHA256))
	}
	if at := ParseCheckpoint(m.Checkpoint); at.Scheme == SchemePath || at.Path == "" {
		c.add(p, "it is checked when one file is fetched from s3:// or hf://", "the checkpoint is not fetched, or is many files")
	}
}

func (c *checker) typeOK(p yamlPath, t string) bool {
	if policy.Type(t).Valid() {
		return true
	}
	var names []string
	for _, t := range policy.Types() {
		names = append(names, string(t))
	}
	if t == "" {
		c.add(p, didYouMean("", names), "type is missing")
	} else {
		c.add(p, didYouMean(t, names), "unknown type %q", clip(t))
	}
	return false
}

// recipe looks up a model's recipe; ok is false if there is no usable one.
func (c *checker) recipe(m *Model, p yamlPath) (rec recipe.Recipe, ok bool) {
	p = p.child("recipe")
	rec, ok = c.d.Recipes[m.Recipe]
	switch {
	case c.d.brokenRecipes[m.Recipe]:
		return rec, false
	case m.Recipe == "":
		c.add(p, "only a checkpoint whose name ends in .gguf needs none", "recipe is missing")
	case !ok:
		c.add(p, didYouMean(m.Recipe, slices.Sorted(maps.Keys(c.d.Recipes))), "unknown recipe %q", clip(m.Recipe))
	}
	return rec, ok
}

// fits checks a model against its recipe.
func (c *checker) fits(m *Model, rec recipe.Recipe, p yamlPath) {
	if m.Type.Valid() && !rec.Serves(m.Type) {
		c.add(p.child("type"), "it serves "+joinTypes(rec.Types), "recipe %s serves no %s models", m.Recipe, m.Type)
	}
	if m.Checkpoint == "" && mentions(rec, "{model}") {
		c.add(p, "a path, s3://bucket/key or hf://org/repo/file", "checkpoint is missing")
	}
	if m.MMProj != "" && !mentions(rec, "{mmproj}") {
		c.add(p.child("mmproj"), "", "recipe %s takes no projector", m.Recipe)
	}
	if m.Conversations == SharePerKey && (m.Type != policy.LLM || rec.Family() != recipe.LlamaCpp) {
		c.add(p.child("conversations"), "", "only models of type llm on llamacpp keep conversations apart by key")
	}
	from := recipe.Operator
	if m.Registered {
		from = recipe.Client
		if !rec.Registrable() {
			c.add(p.child("recipe"), "its entry under recipes says `registration: allow` otherwise", "recipe %s takes no registered models", m.Recipe)
		}
		for i, label := range m.Labels {
			if !ValidHostName(label) || i == maxLabels {
				c.add(p.child("labels").index(i), hostNameHint, "bad label %q, or too many", clip(label))
				break
			}
		}
	}
	opts, err := rec.ParseOptions(m.Options, from)
	for _, e := range flatten(err) {
		var oe *recipe.OptionError
		if !errors.As(e, &oe) {
			c.add(p.child("options"), "", "%v", e)
			continue
		}
		hint := ""
		if _, known := rec.Options[oe.Name]; !known {
			hint = didYouMean(oe.Name, slices.Sorted(maps.Keys(rec.Options)))
		}
		c.add(p.child("options").child(oe.Name), hint, "%s", oe.Reason)
	}
	if err == nil && len(opts) > 0 {
		m.Options = opts
	}
	switch d := rec.DevicesFor(opts, m.Devices); {
	case d == 0:
		c.unjudged = true
		if !c.blamed(p.child("device")) {
			c.add(p, "cpu, gpu, npu or a list", "device is missing: recipe %s has no default", m.Recipe)
		}
	case m.Devices != 0 && m.Devices != d:
		c.unjudged = true
		c.add(p.child("device"), "leave one of the two out", "device %s, but the backend that the options select uses %s", m.Devices, d)
	default:
		m.Devices = d
	}
	c.gpus(p, m, &rec)
}

// gpus checks a model's choice of GPUs.
func (c *checker) gpus(p yamlPath, m *Model, rec *recipe.Recipe) {
	at := p.child("gpus")
	if len(m.Cards) > 0 {
		at = p.child("device")
	}
	switch {
	case m.GPUs == 0 && len(m.Cards) == 0, m.Devices == 0:
	case !m.Devices.Has(policy.GPU):
		c.add(at, "", "the model uses no gpu, but %s", m.Devices)
	case rec.GPUs.Split == "":
		c.add(at, "", "recipe %s cannot be told which gpus to use", m.Recipe)
	case m.GPUs > policy.MaxGPUs:
		c.add(p.child("gpus"), "", "%d gpus: want at most %d", m.GPUs, policy.MaxGPUs)
	case m.GPUs > 1 && rec.GPUs.Split == recipe.SplitNone:
		c.add(p.child("gpus"), "", "recipe %s uses one gpu", m.Recipe)
	case len(m.Cards) > 0 && m.GPUs > len(m.Cards):
		c.add(p.child("gpus"), "", "%d gpus, but device names %d", m.GPUs, len(m.Cards))
	}
}

// mentions reports whether a recipe's command has a placeholder.
func mentions(rec recipe.Recipe, placeholder string) bool {
	for _, group := range rec.Command {
		for _, arg := range group {
			if strings.Contains(arg, placeholder) {
				return true
			}
		}
	}
	return false
}

func joinTypes(types []policy.Type) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = string(t)
	}
	return strings.Join(names, ", ")
}

// byBackend lists the hosts that m could run on with another backend than its entry selects, and an option that selects
// that backend.
func (c *checker) byBackend(m *Model) (hosts []*Host, option string) {
	rec := c.d.Recipes[m.Recipe]
	for _, name := range slices.Sorted(maps.Keys(rec.Backends)) {
		moved := *m
		moved.Devices = rec.Backends[name].Devices
		if hosts = c.d.HostsFor(&moved); len(hosts) > 0 {
			return hosts, rec.BackendOption + ": " + name
		}
	}
	return nil, ""
}

// placement checks that every model has a host and every host a model. Without hosts it checks nothing.
func (c *checker) placement() {
	if len(c.d.Hosts) == 0 {
		return
	}
	var names []string
	for _, h := range c.d.Hosts {
		names = append(append(names, h.Name), h.Labels...)
	}
	allowed := map[string]bool{}
	for _, m := range c.d.Models {
		p, named := modelPath(m.ID), true
		for i, name := range m.Hosts {
			if !slices.Contains(names, name) {
				c.add(p.child("hosts").index(i), didYouMean(name, names), "no host has the name or label %q", clip(name))
				named = false
			}
		}
		if !named || m.Devices == 0 {
			continue
		}
		hosts, backend := c.d.HostsFor(m), ""
		if len(hosts) == 0 {
			hosts, backend = c.byBackend(m)
		}
		for _, h := range hosts {
			allowed[h.Name] = true
		}
		among := "in the file"
		if len(m.Hosts) > 0 {
			among = "among " + strings.Join(m.Hosts, ", ")
		}
		switch {
		case len(hosts) == 0:
			c.add(p, "", "no host %s has its devices (%s)", among, m.Devices)
		case backend != "":
			c.warn(p, "until saved options, a load's or the runner's flags say "+backend, "no host %s has its devices (%s)", among, m.Devices)
		}
	}
	if c.unjudged || len(c.d.Models) == 0 {
		return
	}
	for _, h := range c.d.Hosts {
		p := yamlPath("hosts").child(h.Name)
		usable := allowed[h.Name] || slices.ContainsFunc(c.d.Models, func(m *Model) bool { return h.Has(m.Devices) })
		switch {
		case !usable:
			c.add(p, "it has the devices of none", "no model can use this host")
		case !allowed[h.Name]:
			c.warn(p, "the hosts lists of all models leave it out", "no model is placed on this host")
		}
	}
}

func (c *checker) defaults() {
	models := c.d.Defaults.Models
	for _, t := range slices.Sorted(maps.Keys(models)) {
		p := yamlPath("defaults").child("models").child(string(t))
		if !c.typeOK(p, string(t)) {
			continue
		}
		m := c.known(p, models[t])
		switch {
		case m == nil:
		case m.Type != t && m.Type.Valid():
			c.add(p, "", "%s is of type %s, not %s", m.ID, m.Type, t)
		default:
			models[t] = m.ID
		}
	}
}

func (c *checker) warmup(w *Warmup, p yamlPath) {
	if w.Model == "" {
		c.add(p, "", "model is missing")
	} else if m := c.known(p.child("model"), w.Model); m != nil {
		w.Model = m.ID
	}
	if at := p.child("for"); w.For == 0 && !c.blamed(at) {
		c.add(at, `how long to keep it, such as "2h"`, "want a duration of more than 0")
	}
}

// blamed reports whether p or a part of it already has a problem.
func (c *checker) blamed(p yamlPath) bool {
	path := p.String()
	return slices.ContainsFunc(c.problems, func(x Problem) bool {
		return x.Path == path || strings.HasPrefix(x.Path, path+".")
	})
}
