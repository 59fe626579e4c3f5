package manage

import (
	"context"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/web"
	"reveille/infra/state"
)

// Pin pins or unpins a model until another call, whatever the catalog says. It also overrides the pin of a load,
// which otherwise lasts until that copy is unloaded.
func (s *Service) Pin(r *web.Request) error {
	model, err := s.namedModel(r)
	if err != nil {
		return err
	}
	var asked struct {
		Pinned bool `json:"pinned"` // the route table requires it
	}
	if err := r.Decode(&asked); err != nil {
		return err
	}
	if err := s.setPin(model.ID, asked.Pinned); err != nil {
		return err
	}
	message := "Model pinned"
	if !asked.Pinned {
		message = "Model unpinned"
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"status": "success", "message": message, "model_name": model.ID, "pinned": asked.Pinned})
}

// pinWait bounds the wait for the runners to apply a pin.
const pinWait = time.Second

// setPin pins or unpins a model and waits until the runners that hold it have confirmed, so that the new pin applies to
// the next load.
func (s *Service) setPin(model string, pinned bool) error {
	if err := s.registry.Tables.Set(context.Background(), state.Pins, model, state.PinValue(pinned)); err != nil {
		return err
	}
	due := time.NewTimer(pinWait)
	defer due.Stop()
	for {
		changed := s.cfg.Mirror.Changed()
		behind := slices.ContainsFunc(s.cfg.Mirror.Snapshot().Copies(model), func(m *state.ModelRecord) bool { return m.Pinned != pinned || m.LoadPin })
		if !behind {
			return nil
		}
		select {
		case <-changed:
		case <-due.C:
			return nil // a runner that is unavailable applies it when it is back
		}
	}
}
