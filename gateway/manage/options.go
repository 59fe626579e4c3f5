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

// replyOptions responds with a model's options: those saved, and those of its next load.
func (s *Service) replyOptions(r *web.Request, m *catalog.Model) error {
	saved, text := s.registry.Saved(m.ID), ""
	if len(saved) > 0 {
		text = saved.Canonical()
	}
	next := s.registry.Next(s.cfg.Catalog(), m, text)
	if !r.Manages() {
		saved, next = redactOptions(saved), redactOptions(next)
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"model_name": m.ID, "recipe": m.Recipe, "saved": saved, "effective": next})
}

// OptionsGet returns a model's options.
func (s *Service) OptionsGet(r *web.Request) error {
	m, err := s.registry.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	if _, err := s.registry.Tables.Read(context.Background(), state.SavedOptions); err != nil {
		return models.StoreError(err)
	}
	_, _ = s.registry.Fresh()
	return s.replyOptions(r, m)
}

// OptionsSet saves options for a model's next loads. Others stay; null and, for arguments and texts, "" remove one.
func (s *Service) OptionsSet(r *web.Request) error {
	body, err := r.Members()
	if err != nil {
		return err
	}
	m, err := s.registry.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	given, err := s.registry.OptionsOf(m, body)
	if err != nil {
		return err
	}
	for name := range body {
		if _, option := given[name]; !option && string(body[name]) != "null" {
			return api.Newf(api.UnsupportedParameter, "Unknown option '%.64s'.", name).WithParam(name)
		}
	}
	if _, err := s.registry.Tables.Read(context.Background(), state.SavedOptions); err != nil {
		return models.StoreError(err)
	}
	next := s.registry.Saved(m.ID)
	maps.Copy(next, given)
	maps.DeleteFunc(next, func(_ string, v any) bool { return v == nil || v == "" })
	return s.saveOptions(r, m, next)
}

// OptionsDelete deletes a model's saved options.
func (s *Service) OptionsDelete(r *web.Request) error {
	m, err := s.registry.Named(&r.Key, r.Match.ID)
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
	if err := s.registry.Tables.Set(context.Background(), state.SavedOptions, m.ID, text); err != nil {
		return err
	}
	return s.replyOptions(r, m)
}
