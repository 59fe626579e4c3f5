package httpapi

import (
	"context"
	"slices"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
)

type unloadAnswer struct {
	Status  string `json:"status"`
	Message string `json:"message"`
	Name    string `json:"model_name"`
}

type unloadAllAnswer struct {
	Status   string   `json:"status"`
	Message  string   `json:"message"`
	Unloaded []string `json:"unloaded"`
}

// unload unloads the model that the body names, or all models if it names none. An invalid body unloads nothing.
func (s *Server) unload(r *request) error {
	values, err := r.fields()
	if err != nil {
		return err
	}
	force, err := r.force()
	if err != nil {
		return err
	}
	ctx, stop := r.clientContext()
	defer stop()
	name := r.hit.Route.ModelName(values)
	switch {
	case !name.Set():
		gone, err := s.unloadModel(ctx, "", force)
		if err != nil {
			return r.unlessLeft(err)
		}
		return r.reply(fasthttp.StatusOK, unloadAllAnswer{"success", "All models unloaded successfully", gone})
	case name.Empty():
		return api.New(api.MissingRequiredParameter, "'model_name' must not be empty; leave it out to unload all models.").With("model_name")
	}
	model, err := s.modelNamed(name.String())
	if err != nil {
		return err
	}
	if _, err := s.unloadModel(ctx, model.ID, force); err != nil {
		return r.unlessLeft(err)
	}
	r.ctx.Response.Header.Set(api.HeaderModel, model.ID)
	return r.reply(fasthttp.StatusOK, unloadAnswer{"success", "Model unloaded successfully", model.ID})
}

// unlessLeft returns err, or nil if the request ended because its client left.
func (r *request) unlessLeft(err error) error {
	if r.left(err) {
		return nil
	}
	return err
}

// unloadModel unloads a model, or all for "", and returns the names of those unloaded. When it returns, the mirror is up to date.
func (s *Server) unloadModel(ctx context.Context, model string, force bool) (gone []string, err error) {
	done, err := s.cfg.Gate.Unload(ctx, model, force)
	if err != nil {
		return nil, err
	}
	gone = []string{}
	for _, u := range done {
		if u.Err != nil {
			err = u.Err
		} else if !slices.Contains(gone, u.Model) {
			gone = append(gone, u.Model)
		}
	}
	_, _ = s.refreshSnapshot(ctx) // the models are gone even if this fails
	return gone, err
}

// ensureGone unloads a model. It is no error if the model is not loaded.
func (s *Server) ensureGone(ctx context.Context, model string) error {
	if _, err := s.unloadModel(ctx, model, false); err != nil && api.As(err).Kind != api.ModelNotLoaded {
		return err
	}
	return nil
}

// unloadAll is GET /unload: it unloads all models and answers in plain text. HEAD checks that the route exists and
// unloads nothing.
func (s *Server) unloadAll(r *request) error {
	if !r.hit.Head {
		ctx, stop := r.clientContext()
		defer stop()
		if _, err := s.unloadModel(ctx, "", false); err != nil {
			return r.unlessLeft(err)
		}
	}
	r.send(fasthttp.StatusOK, textPlain, []byte("OK"))
	return nil
}

var msgOK = map[string]string{"msg": "ok"}

// apiUnloadAll is POST /api/models/unload.
func (s *Server) apiUnloadAll(r *request) error {
	ctx, stop := r.clientContext()
	defer stop()
	if _, err := s.unloadModel(ctx, "", false); err != nil {
		return r.unlessLeft(err)
	}
	return r.reply(fasthttp.StatusOK, msgOK)
}

// apiUnload is POST /api/models/unload/{id}.
func (s *Server) apiUnload(r *request) error {
	model, err := s.modelNamed(r.hit.ID)
	if err != nil {
		return err
	}
	ctx, stop := r.clientContext()
	defer stop()
	if err := s.ensureGone(ctx, model.ID); err != nil {
		return r.unlessLeft(err)
	}
	return r.reply(fasthttp.StatusOK, msgOK)
}
