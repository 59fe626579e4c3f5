package httpapi

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/valyala/fasthttp"

	"reveille/infra/catalog"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// optionsAnswer is the answer of the options routes.
type optionsAnswer struct {
	Name      string         `json:"model_name"`
	Recipe    string         `json:"recipe"`
	Saved     recipe.Options `json:"saved"`
	Effective recipe.Options `json:"effective"` // of the loaded model, else of the next load
	Defaults  recipe.Options `json:"defaults"`  // without the saved ones; a host's flags are not known here
	Context   *int64         `json:"resolved_ctx_size"`
}

// saved returns the options stored for a model, empty for none.
func (s *Server) saved(id string) recipe.Options {
	o := recipe.Options{}
	if text := s.tables.of(state.SavedOptions)[id]; text != "" && json.Unmarshal([]byte(text), &o) != nil {
		return recipe.Options{}
	}
	return o
}

// effective returns a model's options in force.
func (s *Server) effective(cat *catalog.Catalog, m *catalog.Model) recipe.Options {
	if copies := s.cfg.Mirror.Snapshot().Copies(m.ID); len(copies) > 0 && len(copies[0].Options) > 0 {
		var o recipe.Options
		if json.Unmarshal(copies[0].Options, &o) == nil && o != nil {
			return o
		}
	}
	rc := cat.Recipes[m.Recipe]
	return rc.Effective(recipe.Layers{Saved: s.saved(m.ID), Catalogue: m.Options})
}

func (r *request) replyOptions(m *catalog.Model) error {
	cat := r.s.cfg.Catalog()
	rc := cat.Recipes[m.Recipe]
	out := optionsAnswer{
		Name: m.ID, Recipe: m.Recipe, Saved: r.s.saved(m.ID), Effective: r.s.effective(cat, m),
		Defaults: rc.Effective(recipe.Layers{Catalogue: m.Options}),
	}
	if n, _ := r.s.contextOf(m, r.s.weightsOf(cat, m), out.Effective); n > 0 {
		out.Context = &n
	}
	if !r.manages() {
		out.Saved, out.Effective, out.Defaults = redactOptions(out.Saved), redactOptions(out.Effective), redactOptions(out.Defaults)
	}
	return r.reply(fasthttp.StatusOK, out)
}

// optionsGet returns a model's options.
func (s *Server) optionsGet(r *request) error {
	m, err := s.modelNamed(r.hit.ID)
	if err != nil {
		return err
	}
	if _, err := s.tables.read(context.Background(), state.SavedOptions); err != nil {
		return storeError(err)
	}
	_, _ = s.freshSnapshot()
	return r.replyOptions(m)
}

// optionsSet saves options for a model's next loads. Others stay; null removes one.
func (s *Server) optionsSet(r *request) error {
	if _, err := r.fields(); err != nil {
		return err
	}
	m, err := s.modelNamed(r.hit.ID)
	if err != nil {
		return err
	}
	body, err := r.members()
	if err != nil {
		return err
	}
	given, err := s.optionsOf(m, body)
	if err != nil {
		return err
	}
	if _, err := s.tables.read(context.Background(), state.SavedOptions); err != nil {
		return storeError(err)
	}
	next := s.saved(m.ID)
	maps.Copy(next, given)
	maps.DeleteFunc(next, func(_ string, v any) bool { return v == nil })
	return r.saveOptions(m, next)
}

// optionsDelete deletes a model's saved options.
func (s *Server) optionsDelete(r *request) error {
	m, err := s.modelNamed(r.hit.ID)
	if err != nil {
		return err
	}
	return r.saveOptions(m, nil)
}

func (r *request) saveOptions(m *catalog.Model, o recipe.Options) error {
	text := ""
	if len(o) > 0 {
		text = o.Canonical()
	}
	if err := r.s.tables.set(context.Background(), state.SavedOptions, m.ID, text); err != nil {
		return err
	}
	return r.replyOptions(m)
}
