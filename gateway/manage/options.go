package manage

import (
	"context"
	"maps"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
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
	Effective recipe.Options `json:"effective"` // of the next load, with its model_name: a body of POST /load
	Defaults  recipe.Options `json:"defaults"`  // the same without the saved ones
	Context   *int64         `json:"resolved_ctx_size"`
}

// replyOptions answers with a model's options: those saved, and those in force if next were.
func (s *Service) replyOptions(r *web.Request, m *catalog.Model, saved, next recipe.Options) error {
	cat := s.cfg.Catalog()
	text := ""
	if len(next) > 0 {
		text = next.Canonical()
	}
	out := optionsAnswer{Name: m.ID, Recipe: m.Recipe, Saved: saved, Effective: s.dir.Next(cat, m, text), Defaults: s.dir.Next(cat, m, "")}
	if n := s.dir.NextContext(m, s.dir.WeightsOf(cat, m), out.Effective); n > 0 {
		out.Context = &n
	}
	if !r.Manages() {
		out.Saved, out.Effective, out.Defaults = redactOptions(out.Saved), redactOptions(out.Effective), redactOptions(out.Defaults)
	}
	for _, o := range []recipe.Options{out.Effective, out.Defaults} {
		o["model_name"] = m.ID
	}
	return r.Reply(fasthttp.StatusOK, out)
}

// OptionsGet returns a model's options.
func (s *Service) OptionsGet(r *web.Request) error {
	m, err := s.dir.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	if _, err := s.dir.Tables.Read(context.Background(), state.SavedOptions); err != nil {
		return models.StoreError(err)
	}
	_, _ = s.dir.Fresh()
	return s.replySaved(r, m)
}

func (s *Service) replySaved(r *web.Request, m *catalog.Model) error {
	saved := s.dir.Saved(m.ID)
	return s.replyOptions(r, m, saved, saved)
}

// OptionsSet saves options for a model's next loads. Others stay; null and, for arguments and texts, "" remove one. With
// dry_run, it answers as if they were saved.
func (s *Service) OptionsSet(r *web.Request) error {
	body, err := r.Members()
	if err != nil {
		return err
	}
	m, err := s.dir.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	dry, err := web.FlagOf(body, "dry_run")
	if err != nil {
		return err
	}
	delete(body, "dry_run")
	delete(body, "model_name") // effective has it
	given, err := s.dir.OptionsOf(m, body)
	if err != nil {
		return err
	}
	for name := range body {
		if _, option := given[name]; !option && string(body[name]) != "null" {
			return api.Newf(api.UnsupportedParameter, "There is no option '%.64s' to save.", name).WithParam(name)
		}
	}
	if _, err := s.dir.Tables.Read(context.Background(), state.SavedOptions); err != nil {
		return models.StoreError(err)
	}
	next := s.dir.Saved(m.ID)
	maps.Copy(next, given)
	maps.DeleteFunc(next, func(_ string, v any) bool { return v == nil || v == "" })
	if dry != nil && *dry {
		return s.replyOptions(r, m, s.dir.Saved(m.ID), next)
	}
	return s.saveOptions(r, m, next)
}

// OptionsDelete deletes a model's saved options.
func (s *Service) OptionsDelete(r *web.Request) error {
	m, err := s.dir.Named(&r.Key, r.Match.ID)
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
	return s.replySaved(r, m)
}
