package manage

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/state"
)

type alias struct {
	Alias  string `json:"alias"`
	Target string `json:"target"`
}

// Aliases lists the names set at run time, in order. The listings of models show the catalog's.
func (s *Service) Aliases(r *web.Request) error {
	table, err := s.registry.Tables.Read(context.Background(), state.Aliases)
	if err != nil {
		return models.StoreError(err)
	}
	list := []alias{}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		list = append(list, alias{name, table[name]})
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"aliases": list})
}

// AliasSet gives a model another name, which must not be in use, not even in another case or with a tag ":latest".
func (s *Service) AliasSet(r *web.Request) error {
	var asked alias
	if err := r.Decode(&asked); err != nil {
		return err
	}
	name := aliasName(asked.Alias)
	model, err := s.registry.Named(&r.Key, asked.Target)
	if err != nil {
		return err
	}
	if !catalog.ValidModelName(name) {
		return api.New(api.InvalidType, "'alias' must be letters, digits and . _ - in at most two parts separated by a slash, with an optional tag.").WithParam("alias")
	}
	for _, m := range s.cfg.Catalog().Models {
		names := append([]string{m.ID}, m.Aliases...)
		if slices.ContainsFunc(names, func(other string) bool { return catalog.SameName(other, name) }) {
			return api.Newf(api.OptionConflict, "The name '%s' already belongs to the model '%s'.", name, m.ID).WithParam("alias")
		}
	}
	for other := range s.cfg.Catalog().Any {
		if catalog.SameName(other, name) {
			return api.Newf(api.OptionConflict, "The models file has another meaning for the name '%s'.", name).WithParam("alias")
		}
	}
	table, err := s.registry.Tables.Read(context.Background(), state.Aliases)
	if err != nil {
		return models.StoreError(err)
	}
	for other, owner := range table {
		if catalog.SameName(other, name) && (other != name || owner != model.ID) {
			return api.Newf(api.OptionConflict, "The name '%s' already belongs to the model '%s'; delete it there first.", other, owner).WithParam("alias")
		}
	}
	if err := s.registry.Tables.Set(context.Background(), state.Aliases, name, model.ID); err != nil {
		return err
	}
	return r.Reply(fasthttp.StatusOK, alias{name, model.ID})
}

// aliasName returns a name as it is stored: without the tag ":latest", with which every name works too.
func aliasName(name string) string {
	for n := len(name) - len(latest); n > 0 && strings.EqualFold(name[n:], latest); n = len(name) - len(latest) {
		name = name[:n]
	}
	return name
}

// aliasIn returns a name as a table of names has it, "" if it is not there.
func aliasIn(table map[string]string, name string) string {
	for other := range table {
		if catalog.SameName(other, name) {
			return other
		}
	}
	return ""
}

// AliasDelete removes a name.
func (s *Service) AliasDelete(r *web.Request) error {
	table, err := s.registry.Tables.Read(context.Background(), state.Aliases)
	if err != nil {
		return models.StoreError(err)
	}
	name := aliasIn(table, r.Match.ID)
	if name == "" {
		return api.Newf(api.ModelNotFound, "The alias '%.200s' does not exist.", r.Match.ID).WithParam("alias")
	}
	if err := s.registry.Tables.Set(context.Background(), state.Aliases, name, ""); err != nil {
		return err
	}
	return r.Reply(fasthttp.StatusOK, map[string]string{"status": "success", "message": "Alias removed", "alias": name})
}
