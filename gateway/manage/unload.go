package manage

import (
	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/web"
)

// Unload unloads the model that the body names, or all models if the body is absent or empty. An invalid body unloads
// nothing, nor does one that has members and names no model.
func (s *Service) Unload(r *web.Request) error {
	name, err := r.ModelName()
	if err != nil {
		return err
	}
	members, err := r.Members()
	if err != nil {
		return err
	}
	force := string(members["force"]) == "true" // the route table wants a boolean
	delete(members, "force")
	if asked := r.Query("model"); asked != "" && !name.Set() {
		return s.unloadOne(r, asked, force)
	}
	switch {
	case !name.Set() && r.Key.Limited():
		return api.RestrictedKey()
	case !name.Set() && len(members) > 0:
		return api.New(api.MissingRequiredParameter, "The body names no model: want 'model_name', or an empty body to unload all models.").WithParam("model_name")
	case !name.Set():
		ctx, stop := r.ClientContext()
		defer stop()
		gone, err := s.registry.Unload(ctx, "", force)
		if err != nil {
			return r.UnlessClientGone(err)
		}
		return r.Reply(fasthttp.StatusOK, map[string]any{"status": "success", "message": "All models unloaded successfully", "unloaded": gone})
	case name.Empty():
		return api.New(api.MissingRequiredParameter, "'model_name' must not be empty; leave it out to unload all models.").WithParam("model_name")
	}
	return s.unloadOne(r, name.String(), force)
}

func (s *Service) unloadOne(r *web.Request, name string, force bool) error {
	model, err := s.registry.Named(&r.Key, name)
	if err != nil {
		return err
	}
	ctx, stop := r.ClientContext()
	defer stop()
	if _, err := s.registry.Unload(ctx, model.ID, force); err != nil {
		return r.UnlessClientGone(err)
	}
	r.Ctx.Response.Header.Set(api.HeaderModel, model.ID)
	return r.Reply(fasthttp.StatusOK, map[string]string{"status": "success", "message": "Model unloaded successfully", "model_name": model.ID})
}

// UnloadAll is GET /unload, llama-swap's: it unloads all models and responds in plain text. HEAD checks that the route
// exists and unloads nothing.
func (s *Service) UnloadAll(r *web.Request) error {
	if asked := r.Query("model"); asked != "" && !r.Match.Head {
		return s.unloadOne(r, asked, false)
	}
	if !r.Match.Head {
		ctx, stop := r.ClientContext()
		defer stop()
		if _, err := s.registry.Unload(ctx, "", false); err != nil {
			return r.UnlessClientGone(err)
		}
	}
	r.Send(fasthttp.StatusOK, web.TextPlain, []byte("OK"))
	return nil
}
