package httpapi

import (
	"context"
	"maps"
	"slices"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/state"
)

type alias struct {
	Alias  string `json:"alias"`
	Target string `json:"target"`
}

type aliasList struct {
	Aliases []alias `json:"aliases"`
}

// aliases lists the names set at run time, in order. The listings of models show the catalogue's.
func (s *Server) aliases(r *request) error {
	table, err := s.tables.read(context.Background(), state.Aliases)
	if err != nil {
		return storeError(err)
	}
	list := aliasList{Aliases: []alias{}}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		list.Aliases = append(list.Aliases, alias{name, table[name]})
	}
	return r.reply(fasthttp.StatusOK, list)
}

// aliasGet returns one of them.
func (s *Server) aliasGet(r *request) error {
	table, err := s.tables.read(context.Background(), state.Aliases)
	if err != nil {
		return storeError(err)
	}
	target, there := table[r.hit.ID]
	if !there {
		return unknownAlias(r.hit.ID)
	}
	return r.reply(fasthttp.StatusOK, alias{r.hit.ID, target})
}

// aliasSet gives a model another name, which must not be in use. The name is in the path or in the body.
func (s *Server) aliasSet(r *request) error {
	if _, err := r.fields(); err != nil {
		return err
	}
	m, err := r.members()
	if err != nil {
		return err
	}
	name := r.hit.ID
	if name == "" {
		if name, err = textOf(m, "alias"); err != nil {
			return err
		}
	}
	target, err := textOf(m, "target")
	if err != nil {
		return err
	}
	if !catalog.ValidModelName(name) {
		return api.New(api.InvalidType, "'alias' must be letters, digits and . _ - in at most two parts separated by a slash, with an optional tag.").With("alias")
	}
	if owner := s.owner(name); owner != "" {
		return api.Newf(api.OptionConflict, "The name '%s' is one of the model '%s' already.", name, owner).With("alias")
	}
	model, err := s.modelNamed(target)
	if err != nil {
		return err
	}
	if err := s.tables.set(context.Background(), state.Aliases, name, model.ID); err != nil {
		return err
	}
	return r.reply(fasthttp.StatusOK, alias{name, model.ID})
}

// owner returns the model that has the name in the catalogue, as its id or an alias; "" if none.
func (s *Server) owner(name string) string {
	for _, m := range s.cfg.Catalog().Models {
		if m.ID == name || slices.Contains(m.Aliases, name) {
			return m.ID
		}
	}
	return ""
}

// aliasDelete removes a name.
func (s *Server) aliasDelete(r *request) error {
	table, err := s.tables.read(context.Background(), state.Aliases)
	if err != nil {
		return storeError(err)
	}
	if _, there := table[r.hit.ID]; !there {
		return unknownAlias(r.hit.ID)
	}
	if err := s.tables.set(context.Background(), state.Aliases, r.hit.ID, ""); err != nil {
		return err
	}
	return r.reply(fasthttp.StatusOK, map[string]string{"status": "success", "message": "Alias removed", "alias": r.hit.ID})
}

func unknownAlias(name string) error {
	return api.Newf(api.ModelNotFound, "There is no alias '%.200s'.", name).With("alias")
}

// aliased is the catalogue with the names set at run time, and the sources of both.
type aliased struct {
	cat, of *catalog.Catalog
	tables  *map[state.Setting]map[string]string
}

// names returns the catalogue in force with the names set at run time.
func (s *Server) names() *catalog.Catalog {
	cat, tables := s.cfg.Catalog(), s.tables.cur.Load()
	if len((*tables)[state.Aliases]) == 0 {
		return cat
	}
	a := s.aliased.Load()
	if a == nil || a.of != cat || a.tables != tables {
		a = &aliased{cat.WithNames((*tables)[state.Aliases]), cat, tables}
		s.aliased.Store(a)
	}
	return a.cat
}

// isName reports whether a name is exactly a model's: its id, an alias of the catalogue or one set at run time.
func (s *Server) isName(name string) bool {
	if _, there := s.tables.of(state.Aliases)[name]; there {
		return true
	}
	return s.owner(name) != ""
}
