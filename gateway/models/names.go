package models

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/infra/term"
)

// Resolve finds the model that a client names; "" is the default of the route's type. The key must allow it. An error
// names no model that the key may not use, unless the client named it.
func (d *Registry) Resolve(key *keys.Key, name string, route *api.Route) (*catalog.Model, error) {
	given := name
	if name == "" {
		if name = d.defaultModel(route); name == "" && route.InQuery {
			name = d.LastUsed(key, route.Type)
		}
		if name == "" {
			return nil, api.NoModel()
		}
	}
	cat := d.names()
	id, err := cat.Resolve(d.firstLoaded(key, cat, name))
	if err != nil {
		if many, ok := errors.AsType[*catalog.AmbiguousError](err); ok {
			visible := key.Visible(many.Candidates)
			if len(visible) == 0 {
				return nil, forbidden(given)
			}
			return nil, api.Newf(api.ModelAmbiguous, "The name '%s' fits several models: %v.", many.Name, visible).WithParam("model")
		}
		return nil, d.Unknown(key, name)
	}
	m, ok := cat.Model(id)
	if !ok {
		return nil, d.Unknown(key, name)
	}
	if !key.Allows(m.ID) {
		return nil, forbidden(given)
	}
	return m, nil
}

// firstLoaded returns the model that one of the catalog's names for several stands for: the first loaded one that the
// key may use, else the first that it may use. Any other name is returned as it is.
func (d *Registry) firstLoaded(key *keys.Key, cat *catalog.Catalog, name string) string {
	list := cat.Any[strings.TrimSuffix(name, ":latest")]
	first := name
	for _, id := range key.Visible(list) {
		if d.StateOf(id) == "loaded" {
			return id
		}
		if first == name {
			first = id
		}
	}
	if first == name && len(list) > 0 {
		return list[0] // which the key may not use
	}
	return first
}

// PresetOf returns what one of a model's names adds to requests, nil for nothing.
func PresetOf(m *catalog.Model, name string) *catalog.Preset {
	_, short, _ := strings.Cut(name, "/") // a provider before it
	for alias, p := range m.Presets {
		if catalog.SameName(alias, name) || catalog.SameName(alias, short) {
			return &p
		}
	}
	return nil
}

// forbidden is the error for a name, as the client sent it, of a model that the key may not use.
func forbidden(name string) error {
	what := "the default model"
	if name != "" {
		what = "the model '" + term.Clip(name, 200) + "'"
	}
	return api.New(api.InsufficientScope, "This key may not use "+what+".").WithParam("model")
}

// Unknown is the error for a name that the catalog does not have.
func (d *Registry) Unknown(key *keys.Key, name string) *api.Error {
	if id, why := d.Withheld(name); why != "" && key.Allows(id) {
		return api.Newf(api.ModelNotFound, "The model '%s' is registered but not served: %s.", id, why).WithParam("model")
	}
	return api.UnknownModel(name)
}

// Withheld finds a registered model by one of its names and returns why it is not served.
func (d *Registry) Withheld(name string) (id, why string) {
	if d.cfg.Withheld == nil {
		return "", ""
	}
	id = UserSpace + strings.TrimPrefix(name, UserSpace)
	return id, d.cfg.Withheld(id)
}

func (d *Registry) defaultModel(route *api.Route) string {
	if route.Type == "" {
		return ""
	}
	id, _ := d.cfg.Catalog().Default(route.Type)
	return id
}

// LastUsed returns the loaded model of a type that was used last, among those that the key may use; "" if there is
// none. The paths of llama-server, whose clients name no model, are for it.
func (d *Registry) LastUsed(key *keys.Key, t policy.Type) string {
	id, at := "", int64(-1)
	cat, snap := d.cfg.Catalog(), d.cfg.Mirror.Snapshot()
	for _, host := range snap.Names() {
		for _, m := range snap.Hosts[host].Models {
			model, known := cat.Model(m.ID)
			if !known || model.Type != t || snap.Hosts[host].Loaded(m.ID) == nil || m.Retired != "" || !key.Allows(m.ID) {
				continue
			}
			if used, _ := d.Uses.LastOn(m, host); used > at {
				id, at = m.ID, used
			}
		}
	}
	return id
}

// Named is Resolve for names outside inference, where there is no default.
func (d *Registry) Named(key *keys.Key, name string) (*catalog.Model, error) {
	if name == "" {
		return nil, NoName()
	}
	return d.Resolve(key, name, &api.Route{})
}

// UserSpace is the prefix of the id of every model that a client registered.
const UserSpace = "user."

// aliased is the catalog with the names set at run time, and the sources of both.
type aliased struct {
	cat, of *catalog.Catalog
	tables  *map[state.Setting]map[string]string
}

// names returns the catalog in force with the names set at run time.
func (d *Registry) names() *catalog.Catalog {
	cat, tables := d.cfg.Catalog(), d.Tables.cur.Load()
	if len((*tables)[state.Aliases]) == 0 {
		return cat
	}
	a := d.aliased.Load()
	if a == nil || a.of != cat || a.tables != tables {
		a = &aliased{cat.WithNames((*tables)[state.Aliases]), cat, tables}
		d.aliased.Store(a)
	}
	return a.cat
}

// IsName reports whether a name is exactly a model's: its id, an alias of the catalog or one set at run time.
func (d *Registry) IsName(name string) bool {
	if _, there := d.Tables.Of(state.Aliases)[name]; there || len(d.cfg.Catalog().Any[name]) > 0 {
		return true
	}
	return d.Owner(name) != ""
}

// Owner returns the model that has the name in the catalog, as its id or an alias; "" if none.
func (d *Registry) Owner(name string) string {
	for _, m := range d.cfg.Catalog().Models {
		if m.ID == name || slices.Contains(m.Aliases, name) {
			return m.ID
		}
	}
	return ""
}

// AliasesOf lists a model's further names: the catalog's, then those set at run time.
func (d *Registry) AliasesOf(m *catalog.Model) []string {
	out := append([]string{}, m.Aliases...)
	table := d.Tables.Of(state.Aliases)
	for _, alias := range slices.Sorted(maps.Keys(table)) {
		if table[alias] == m.ID && !slices.Contains(out, alias) {
			out = append(out, alias)
		}
	}
	return out
}

// NoName is the error for a management call that names no model.
func NoName() *api.Error {
	return api.New(api.MissingRequiredParameter, "No model specified. Parameter 'model' or 'model_name' is required.").WithParam("model_name")
}
