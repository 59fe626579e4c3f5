package front

import (
	"errors"

	"reveille/gateway/wire"
	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// maxInspected bounds an engine's description of itself.
const maxInspected = 16 << 20

// inspect passes an engine's description of itself on. It never loads a model.
func (s *Server) inspect(path string) handler {
	return func(r *request) error {
		m, err := s.modelNamed(r.query("model"))
		if err != nil {
			if e := wire.As(err); e.Kind == wire.MissingRequiredParameter {
				return wire.New(wire.MissingRequiredParameter, "No model specified. Name one in the query, as ?model=ID.").With("model")
			}
			return err
		}
		snap, _ := s.look()
		copies := snap.Copies(m.ID)
		if len(copies) == 0 {
			return notLoaded(m.ID)
		}
		h := &r.ctx.Response.Header
		h.Set(wire.HeaderModel, m.ID)
		h.Set(wire.HeaderRunner, copies[0].Host)
		var call relay.Call
		watch := s.watcher.Arm(r.ctx.Conn(), func() { call.Cancel(relay.ErrGone) })
		defer watch.Stop()
		resp, err := r.ask(&call, snap.Hosts[copies[0].Host], path, m.ID)
		if errors.Is(err, errNotThere) {
			return notLoaded(m.ID)
		}
		if err != nil {
			return r.unlessLeft(err)
		}
		defer resp.Close()
		body, err := resp.AppendBody(nil, maxInspected)
		if err != nil {
			return wire.New(wire.RunnerFailed, "The model's host broke off before the answer was complete.").Because(err)
		}
		if status := resp.Status(); status >= 400 {
			if k, known := wire.KindOf(string(resp.Header(rpc.HeaderCode)), status); known {
				return wire.New(k, wire.Retype(status, body, copies[0].Host).Message)
			}
			return wire.Retype(status, body, copies[0].Host)
		}
		r.send(resp.Status(), "application/json; charset=utf-8", body)
		return nil
	}
}

func notLoaded(model string) error {
	return wire.Newf(wire.NotLoadedConflict, "The model '%s' is not loaded, and this route does not load it.", model).With("model")
}
