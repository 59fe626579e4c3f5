package manage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// registration is the part of a body that describes a model.
type registration struct {
	Checkpoint  string            `json:"checkpoint"`
	Checkpoints map[string]string `json:"checkpoints"` // main, and mmproj if it has a projector
	MMProj      string            `json:"mmproj"`
	Recipe      string            `json:"recipe"`
	Labels      []string          `json:"labels"`
	Device      string            `json:"device"`
	Options     recipe.Options    `json:"recipe_options"`
}

// Register adds a model to the catalog, or changes a registered one.
func (s *Service) Register(r *web.Request) error {
	name, err := r.ModelName()
	if err != nil {
		return err
	}
	if name.Empty() {
		return models.NoName()
	}
	var reg registration
	if err := r.Decode(&reg); err != nil {
		return err
	}
	m, err := s.registerModel(name.String(), reg)
	if err != nil {
		return err
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{
		"status": "success", "model_name": name.String(), "canonical_model_name": m.ID, "model": s.modelItemOf(r, s.cfg.Catalog(), m),
	})
}

// registerModel checks a registration, stores it, and applies it.
func (s *Service) registerModel(name string, reg registration) (*catalog.Model, error) {
	plain := strings.TrimPrefix(name, models.UserSpace)
	if !catalog.ValidModelName(plain) {
		return nil, api.New(api.InvalidType, "The model cannot be registered: its name must be letters, digits and . _ -, the first a letter or digit.").WithParam("model_name")
	}
	for _, space := range catalog.Spaces {
		if space != models.UserSpace && strings.HasPrefix(plain, space) { // it would be found by the name of another model
			return nil, api.Newf(api.InvalidType, "The model cannot be registered: names that start with '%s' are reserved.", space).WithParam("model_name")
		}
	}
	name = models.UserSpace + plain
	m := catalog.Model{
		ID: name, Recipe: reg.Recipe, Labels: reg.Labels, Options: reg.Options,
		Checkpoint: cmp.Or(reg.Checkpoint, reg.Checkpoints["main"]), MMProj: cmp.Or(reg.MMProj, reg.Checkpoints["mmproj"]),
	}
	if m.Recipe == "" {
		return nil, api.New(api.MissingRequiredParameter, "'recipe' is required.").WithParam("recipe")
	}
	var err error
	if m.Devices, err = policy.ParseDevices(reg.Device); err != nil {
		return nil, api.New(api.InvalidType, "'device' must be cpu, gpu, npu or several of them.").WithParam("device")
	}
	if err := s.cfg.Register.Check(&m); err != nil {
		return nil, api.Newf(api.InvalidType, "The model cannot be registered: %s.", err).WithParam("checkpoint")
	}
	cat := s.cfg.Catalog()
	s.pickBackend(cat, &m)
	mine, err := s.cfg.Store.Get(context.Background(), state.Registered, m.ID)
	if err != nil {
		return nil, models.StoreError(err)
	}
	if _, taken := cat.Model(m.ID); taken && mine == "" {
		return nil, api.Newf(api.OptionConflict, "The model '%s' is defined in the catalog file.", m.ID).WithParam("model_name")
	}
	if _, err := cat.With(m); err != nil {
		return nil, refusedEntry(err)
	}
	entry, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if err := s.setRegistered(m.ID, string(entry)); err != nil {
		return nil, err
	}
	out, there := s.cfg.Catalog().Model(m.ID)
	if !there {
		return nil, api.New(api.InternalError, "The model is registered but not active yet.")
	}
	return out, nil
}

// setRegistered stores the entry of a registered model, "" to remove it, and applies it.
func (s *Service) setRegistered(id, entry string) error {
	if err := s.cfg.Store.Set(context.Background(), state.Registered, id, entry); err != nil {
		return models.StoreError(err)
	}
	if err := s.cfg.Overlay(context.Background()); err != nil {
		return models.StoreError(err)
	}
	return nil
}

// pickBackend selects a backend for a model whose registration names no devices if no host has the recipe's: the first
// backend by name that some host can run.
func (s *Service) pickBackend(cat *catalog.Catalog, m *catalog.Model) {
	rc, known := cat.Recipes[m.Recipe]
	if !known || m.Devices != 0 || rc.BackendOption == "" || m.Options[rc.BackendOption] != nil {
		return
	}
	snap, _ := s.registry.Fresh()
	have := poolDevices(snap, cat)
	if have == 0 || have.Has(rc.Devices) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(rc.Backends)) {
		if have.Has(rc.Backends[name].Devices) {
			if m.Options == nil {
				m.Options = recipe.Options{}
			}
			m.Options[rc.BackendOption] = name
			return
		}
	}
}

// refusedEntry returns the catalog's first problem with an entry.
func refusedEntry(err error) *api.Error {
	if problems, ok := errors.AsType[catalog.Problems](err); ok && len(problems) > 0 {
		return api.Newf(api.InvalidType, "The model cannot be registered: %s.", problems[0].Text)
	}
	return api.New(api.InvalidType, "The model cannot be registered.").WithCause(err)
}
