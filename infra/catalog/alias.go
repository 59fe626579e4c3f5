package catalog

import (
	"errors"
	"maps"
	"slices"

	"github.com/goccy/go-yaml"

	"reveille/infra/jsonscan"
	"reveille/infra/recipe"
)

// A Preset changes the bodies of requests that name a model by an alias.
type Preset struct {
	Members map[string]any `json:"members,omitempty"` // for what a body leaves out
	Force   map[string]any `json:"force,omitempty"`   // whatever the body has
}

// Apply returns a JSON body with the preset's members.
func (p *Preset) Apply(body []byte) ([]byte, error) {
	set := func(name string, v any) error {
		text, err := jsonscan.Marshal(v)
		if err == nil {
			body, err = jsonscan.Set(body, name, text)
		}
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(p.Members)) {
		var given [1]jsonscan.Value
		if err := jsonscan.Scan(body, []string{name}, given[:]); err != nil {
			return nil, err
		}
		if !given[0].Set() {
			if err := set(name, p.Members[name]); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Force)) {
		if err := set(name, p.Force[name]); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// force is the name of a preset's part that replaces what a body has.
const force = "force"

// notPreset are the members that a preset cannot set: what a request is about, and the form of its response.
var notPreset = []string{"model", "messages", "input", "prompt", "stream", force}

// aliases are how a file writes a model's aliases: a name, a list of names, or a mapping from names to presets.
type aliases struct {
	names   []string
	presets map[string]Preset
}

// UnmarshalYAML reads the aliases.
func (a *aliases) UnmarshalYAML(unmarshal func(any) error) error {
	var byName map[string]map[string]any
	err := unmarshal(&byName)
	if _, list := errors.AsType[*yaml.UnexpectedNodeTypeError](err); list {
		return unmarshal((*recipe.List[string])(&a.names))
	}
	if err != nil {
		return err
	}
	a.names, a.presets = slices.Sorted(maps.Keys(byName)), map[string]Preset{}
	for name, members := range byName {
		if len(members) == 0 {
			continue
		}
		forced, isMap := members[force].(map[string]any)
		if members[force] != nil && !isMap {
			return errors.New("force: want members of a request's body with their values")
		}
		delete(members, force)
		a.presets[name] = Preset{members, forced}
	}
	return nil
}

// aliases checks the aliases of a model.
func (c *checker) aliases(m *Model) {
	for _, alias := range m.Aliases {
		p := at("models", m.ID, "aliases", alias)
		switch owner := c.owners[alias]; {
		case !ValidModelName(alias):
			c.add(p, "bad alias %q: %s", clip(alias), modelNameHint)
		case owner == nil:
			c.owners[alias] = m
		case owner != m:
			c.add(p, "the name %q belongs to the model %s", alias, owner.ID)
		}
		for _, name := range notPreset {
			if preset := m.Presets[alias]; preset.Members[name] != nil || preset.Force[name] != nil {
				c.add(p, "an alias cannot set %q", name)
			}
		}
	}
}

// anyNames checks the names that stand for the first loaded of several models.
func (c *checker) anyNames() {
	for _, name := range slices.Sorted(maps.Keys(c.Any)) {
		p := at("any", name)
		if len(c.Any[name]) == 0 {
			c.add(p, "no models")
		}
		var first *Model
		for i, member := range c.Any[name] {
			m := c.known(p, member)
			if m == nil {
				continue
			}
			if first == nil {
				first = m
			}
			if c.Any[name][i] = m.ID; m.Type != first.Type {
				c.add(p, "%s is of type %s, not %s", m.ID, m.Type, first.Type)
			}
		}
		if owner := c.owners[name]; owner != nil {
			c.add(p, "the name %q belongs to the model %s", name, owner.ID)
		} else if !ValidModelName(name) {
			c.add(p, "bad name %q: %s", clip(name), modelNameHint)
		}
	}
}
