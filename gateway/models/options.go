package models

import (
	"encoding/json"
	"errors"
	"strings"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// Saved returns the options stored for a model, empty for none.
func (d *Registry) Saved(id string) recipe.Options {
	o := recipe.Options{}
	if text := d.Tables.Of(state.SavedOptions)[id]; text != "" && json.Unmarshal([]byte(text), &o) != nil {
		return recipe.Options{}
	}
	return o
}

// Effective returns a model's options in force.
func (d *Registry) Effective(cat *catalog.Catalog, m *catalog.Model) recipe.Options {
	if copies := d.cfg.Mirror.Snapshot().Copies(m.ID); len(copies) > 0 && len(copies[0].Options) > 0 {
		var o recipe.Options
		if json.Unmarshal(copies[0].Options, &o) == nil && o != nil {
			return o
		}
	}
	return d.Next(cat, m, d.Tables.Of(state.SavedOptions)[m.ID])
}

// Next returns the options that a model's next load has with these saved ones, JSON or "" for none. Flags of the host
// that loads it are not known here.
func (d *Registry) Next(cat *catalog.Catalog, m *catalog.Model, saved string) recipe.Options {
	rc := cat.Recipes[m.Recipe]
	load, err := placement.Resolve(m, &rc, placement.Sources{Saved: saved, Runtime: d.Tables.Of(state.Runtime)})
	if err != nil { // of what is saved
		return rc.Effective(recipe.Layers{Catalog: m.Options})
	}
	return load.Options
}

// OptionsOf finds the load options among the members of a body and checks them against the model's recipe. It ignores
// members that no recipe knows, as in every request, and a null for another recipe's option.
func (d *Registry) OptionsOf(m *catalog.Model, body map[string]json.RawMessage) (recipe.Options, error) {
	cat := d.cfg.Catalog()
	rc, there := cat.Recipes[m.Recipe]
	if !there {
		return nil, api.Newf(api.ModelLoadError, "The recipe of the model '%s' is not in the catalog.", m.ID)
	}
	raw := map[string]any{}
	for name, value := range body {
		v, err := scalar(value)
		if err != nil {
			return nil, err
		}
		if _, own := rc.Options[name]; own || v != nil && isOption(cat, name) {
			raw[name] = v
		}
	}
	opts, err := rc.ParseOptions(raw, recipe.Client)
	if err != nil {
		return nil, optionError(err, rc.Options)
	}
	return opts, nil
}

// scalar decodes a value; numbers keep their digits.
func scalar(raw json.RawMessage) (v any, err error) {
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, api.New(api.InvalidJSON, "Invalid JSON body.").WithCause(err)
	}
	return v, nil
}

// isOption reports whether any recipe has an option of that name.
func isOption(cat *catalog.Catalog, name string) bool {
	for _, rc := range cat.Recipes {
		if _, has := rc.Options[name]; has {
			return true
		}
	}
	return false
}

// optionError turns the first error of ParseOptions into the client's error.
func optionError(err error, own map[string]recipe.OptionSpec) *api.Error {
	var oe *recipe.OptionError
	if !errors.As(err, &oe) {
		return api.New(api.InvalidType, "The load options are not acceptable.").WithCause(err)
	}
	kind := api.UnsupportedParameter
	if spec, has := own[oe.Name]; has && spec.Kind != recipe.KindArgs {
		kind = api.InvalidType
	}
	return api.Newf(kind, "Option '%s': %s.", oe.Name, oe.Reason).WithParam(oe.Name)
}
