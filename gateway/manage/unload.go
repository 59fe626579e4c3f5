package manage

import (
	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/web"
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
func (s *Service) unload(r *web.Request) error {
	values, err := r.Fields()
	if err != nil {
		return err
	}
	force, err := r.Force()
	if err != nil {
		return err
	}
	ctx, stop := r.ClientContext()
	defer stop()
	name := r.Match.Route.ModelName(values)
	switch {
	case !name.Set():
		gone, err := s.dir.Unload(ctx, "", force)
		if err != nil {
			return r.UnlessLeft(err)
		}
		return r.Reply(fasthttp.StatusOK, unloadAllAnswer{"success", "All models unloaded successfully", gone})
	case name.Empty():
		return api.New(api.MissingRequiredParameter, "'model_name' must not be empty; leave it out to unload all models.").WithParam("model_name")
	}
	model, err := s.dir.Named(&r.Key, name.String())
	if err != nil {
		return err
	}
	if _, err := s.dir.Unload(ctx, model.ID, force); err != nil {
		return r.UnlessLeft(err)
	}
	r.Ctx.Response.Header.Set(api.HeaderModel, model.ID)
	return r.Reply(fasthttp.StatusOK, unloadAnswer{"success", "Model unloaded successfully", model.ID})
}

// unloadAll is GET /unload: it unloads all models and answers in plain text. HEAD checks that the route exists and
// unloads nothing.
func (s *Service) unloadAll(r *web.Request) error {
	if !r.Match.Head {
		ctx, stop := r.ClientContext()
		defer stop()
		if _, err := s.dir.Unload(ctx, "", false); err != nil {
			return r.UnlessLeft(err)
		}
	}
	r.Send(fasthttp.StatusOK, web.TextPlain, []byte("OK"))
	return nil
}

var msgOK = map[string]string{"msg": "ok"}

// apiUnloadAll is POST /api/models/unload.
func (s *Service) apiUnloadAll(r *web.Request) error {
	ctx, stop := r.ClientContext()
	defer stop()
	if _, err := s.dir.Unload(ctx, "", false); err != nil {
		return r.UnlessLeft(err)
	}
	return r.Reply(fasthttp.StatusOK, msgOK)
}

// apiUnload is POST /api/models/unload/{id}.
func (s *Service) apiUnload(r *web.Request) error {
	model, err := s.dir.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	ctx, stop := r.ClientContext()
	defer stop()
	if err := s.dir.EnsureGone(ctx, model.ID); err != nil {
		return r.UnlessLeft(err)
	}
	return r.Reply(fasthttp.StatusOK, msgOK)
}
