package manage

import (
	"context"
	"maps"

	"github.com/valyala/fasthttp"

	"reveille/gateway/models"
	"reveille/gateway/web"
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

func (s *Service) replyOptions(r *web.Request, m *catalog.Model) error {
	cat := s.cfg.Catalog()
	rc := cat.Recipes[m.Recipe]
	out := optionsAnswer{
		Name: m.ID, Recipe: m.Recipe, Saved: s.dir.Saved(m.ID), Effective: s.dir.Effective(cat, m),
		Defaults: rc.Effective(recipe.Layers{Catalogue: m.Options}),
	}
	if n, _ := s.dir.ContextOf(m, s.dir.WeightsOf(cat, m), out.Effective); n > 0 {
		out.Context = &n
	}
	if !r.Manages() {
		out.Saved, out.Effective, out.Defaults = redactOptions(out.Saved), redactOptions(out.Effective), redactOptions(out.Defaults)
	}
	return r.Reply(fasthttp.StatusOK, out)
}

// optionsGet returns a model's options.
func (s *Service) optionsGet(r *web.Request) error {
	m, err := s.dir.Named(&r.Key, r.Hit.ID)
	if err != nil {
		return err
	}
	if _, err := s.dir.Tables.Read(context.Background(), state.SavedOptions); err != nil {
		return models.StoreError(err)
	}
	_, _ = s.dir.Fresh()
	return s.replyOptions(r, m)
}

// optionsSet saves options for a model's next loads. Others stay; null removes one.
func (s *Service) optionsSet(r *web.Request) error {
	body, err := r.Members()
	if err != nil {
		return err
	}
	m, err := s.dir.Named(&r.Key, r.Hit.ID)
	if err != nil {
		return err
	}
	given, err := s.dir.OptionsOf(m, body)
	if err != nil {
		return err
	}
	if _, err := s.dir.Tables.Read(context.Background(), state.SavedOptions); err != nil {
		return models.StoreError(err)
	}
	next := s.dir.Saved(m.ID)
	maps.Copy(next, given)
	withoutNull(next)
	return s.saveOptions(r, m, next)
}

// withoutNull removes the options that are null.
func withoutNull(o recipe.Options) {
	maps.DeleteFunc(o, func(_ string, v any) bool { return v == nil })
}

// optionsDelete deletes a model's saved options.
func (s *Service) optionsDelete(r *web.Request) error {
	m, err := s.dir.Named(&r.Key, r.Hit.ID)
	if err != nil {
		return err
	}
	return s.saveOptions(r, m, nil)
}

func (s *Service) saveOptions(r *web.Request, m *catalog.Model, o recipe.Options) error {
	text := ""
	if len(o) > 0 {
		text = o.Canonical()
	}
	if err := s.dir.Tables.Set(context.Background(), state.SavedOptions, m.ID, text); err != nil {
		return err
	}
	return s.replyOptions(r, m)
}
