package httpapi

import (
	"cmp"
	"errors"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/infra/policy"
	"reveille/infra/relay"
)

// maxInspected bounds an engine's description of itself.
const maxInspected = 16 << 20

// inspect relays an engine's description of itself. It never loads a model.
func inspect(path string) handler {
	return func(s *Server, r *request) error {
		m, err := s.dir.Named(&r.Key, cmp.Or(r.Query("model"), s.dir.LastUsed(&r.Key, policy.LLM)))
		if err != nil {
			if e := api.As(err); e.Kind == api.MissingRequiredParameter {
				return api.New(api.MissingRequiredParameter, "No model specified. Name one in the query, as ?model=ID.").WithParam("model")
			}
			return err
		}
		snap, _ := s.dir.Fresh()
		copies := snap.Copies(m.ID)
		if len(copies) == 0 {
			return notLoaded(m.ID)
		}
		h := &r.Ctx.Response.Header
		h.Set(api.HeaderModel, m.ID)
		h.Set(api.HeaderHost, copies[0].Host)
		var call relay.Call
		watch := s.watcher.Arm(r.Ctx.Conn(), func() { call.Cancel(relay.ErrGone) })
		defer watch.Stop()
		resp, err := s.dir.Ask(&call, snap.Hosts[copies[0].Host], path, m.ID, r.ID, models.AskWait)
		if errors.Is(err, models.ErrNotThere) {
			return notLoaded(m.ID)
		}
		if err != nil {
			return r.UnlessLeft(err)
		}
		defer resp.Close()
		body, err := resp.AppendBody(nil, maxInspected)
		if err != nil {
			return api.New(api.RunnerFailed, "The model's host broke off before the answer was complete.").WithCause(err)
		}
		if resp.Status() >= 400 {
			return clientError(resp, body, copies[0].Host)
		}
		r.Send(resp.Status(), "application/json; charset=utf-8", body)
		return nil
	}
}

func notLoaded(model string) error {
	return api.Newf(api.NotLoadedConflict, "The model '%s' is not loaded, and this route does not load it.", model).WithParam("model")
}
