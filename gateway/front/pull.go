package front

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/peek"
	"reveille/gateway/wire"
	"reveille/infra/catalog"
	"reveille/infra/state"
)

type doneAnswer struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// progress is one event of a streamed pull.
type progress struct {
	File    string  `json:"file"`
	Index   int     `json:"file_index"`
	Files   int     `json:"total_files"`
	Done    int64   `json:"bytes_downloaded"`
	Total   int64   `json:"bytes_total"`
	Percent float64 `json:"percent"`
}

// pull makes sure that a model's weights are there. A name that nothing is called is registered first where the body
// describes a model. Weights that are a path lie on the hosts, or the model cannot be had; others are fetched by the
// runner of a host, which is woken for it. Nothing is loaded.
func (s *Server) pull(r *request) error {
	values, err := r.fields()
	if err != nil {
		return err
	}
	var reg registration
	if err := json.Unmarshal(r.body(), &reg); err != nil {
		return wire.New(wire.InvalidType, "A field of the registration has the wrong type.").Because(err)
	}
	m, err := r.named(values)
	described := reg.Checkpoint != "" || len(reg.Checkpoints) > 0
	if err != nil && wire.As(err).Kind == wire.ModelNotFound && described {
		m, err = s.admit(r.hit.Route.ModelName(values).String(), reg)
	}
	if err != nil {
		return err
	}
	streams := r.hit.Route.Stream(values)
	r.ctx.Response.Header.Set(wire.HeaderModel, m.ID)
	if remote(m) || catalog.ParseCheckpoint(m.MMProj).Scheme != catalog.SchemePath {
		if s.draining.Load() {
			return wire.New(wire.Draining, "This gateway is going away; try again.")
		}
		if streams {
			return r.streamPull(m)
		}
		return r.awaitPull(m)
	}
	w := s.weightsOf(s.cfg.Catalog(), m)
	if !w.there {
		err = wire.Newf(wire.ModelFileNotFound, "The files of the model '%s' are not there.", m.ID)
	}
	if !streams {
		if err != nil {
			return err
		}
		return r.reply(fasthttp.StatusOK, pullDone(m))
	}
	var b []byte
	if err != nil {
		b = r.pullFailed(b, err)
	} else {
		b = r.event(b, "progress", progress{m.StableID(), 1, 1, w.bytes, w.bytes, 100})
		b = r.event(b, "complete", pullDone(m))
	}
	r.ctx.Response.Header.Set("Cache-Control", "no-cache")
	r.send(fasthttp.StatusOK, "text/event-stream; charset=utf-8", b)
	return nil
}

func pullDone(m *catalog.Model) doneAnswer {
	return doneAnswer{"success", "Model is installed: " + m.ID}
}

// pullFailed appends the event of a pull that failed.
func (r *request) pullFailed(b []byte, err error) []byte {
	return r.event(b, "error", json.RawMessage(r.hit.Dialect.Body(wire.As(err), r.id)))
}

// event appends a named event.
func (r *request) event(b []byte, name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte("{}")
	}
	b = append(append(b, "event: "...), name...)
	b = append(append(b, "\ndata: "...), text...)
	return append(b, "\n\n"...)
}

// deleteModel unloads a model, and forgets it if it was registered. Files that the operator's catalogue names are the
// operator's: they stay.
func (s *Server) deleteModel(r *request) error {
	values, err := r.fields()
	if err != nil {
		return err
	}
	m, err := r.named(values)
	if err != nil {
		return deleteUnknown(err, r.hit.Route.ModelName(values))
	}
	ctx, stop := r.attended()
	defer stop()
	if _, err := s.dismiss(ctx, m.ID, false); err != nil && wire.As(err).Kind != wire.ModelNotLoaded {
		return r.unlessLeft(err)
	}
	if strings.HasPrefix(m.ID, userSpace) && s.cfg.Overlay != nil {
		if err := s.cfg.Store.Set(context.Background(), state.Registered, m.ID, ""); err != nil {
			return storeError(err)
		}
		if err := s.cfg.Overlay(context.Background()); err != nil {
			return storeError(err)
		}
	}
	return r.reply(fasthttp.StatusOK, doneAnswer{"success", "Deleted model: " + m.ID})
}

func deleteUnknown(err error, name peek.Value) error {
	if wire.As(err).Kind != wire.ModelNotFound {
		return err
	}
	return wire.Newf(wire.DeleteUnknown, "The model '%.200s' does not exist.", name.String()).With("model_name")
}
