package manage

import (
	"encoding/json"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
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

// pull makes sure that a model's weights are on a host. It first registers an unknown name if the body describes a
// model. Weights given as a path must already be on the hosts; a host's runner fetches others, and the host is woken
// for it. Nothing is loaded.
func (s *Service) pull(r *web.Request) error {
	values, err := r.Fields()
	if err != nil {
		return err
	}
	var reg registration
	if err := json.Unmarshal(r.Body(), &reg); err != nil {
		return api.New(api.InvalidType, "A field of the registration has the wrong type.").WithCause(err)
	}
	described := reg.Checkpoint != "" || len(reg.Checkpoints) > 0 || strings.HasPrefix(reg.Recipe, collectionRecipe)
	if described {
		if err := r.NeedsLocalAdmin(); err != nil {
			return err
		}
	}
	m, err := s.named(r, values)
	if err != nil && api.As(err).Kind == api.ModelNotFound && described {
		m, err = s.admit(r.Match.Route.ModelName(values).String(), reg)
	}
	if err != nil {
		return err
	}
	return s.answerPull(r, m, r.Match.Route.Stream(values), pullEvents{r, m})
}

// answerPull answers when a model's weights are on a host, or at once with a stream that lasts until then.
func (s *Service) answerPull(r *web.Request, m *catalog.Model, streams bool, form pullForm) error {
	r.Ctx.Response.Header.Set(api.HeaderModel, m.ID)
	if models.Remote(m) || catalog.ParseCheckpoint(m.MMProj).Scheme != catalog.SchemePath {
		if s.cfg.Draining() {
			return api.GoingAway()
		}
		if streams {
			return s.streamPull(r, m, form)
		}
		return s.awaitPull(r, m, form)
	}
	w := s.dir.WeightsOf(s.cfg.Catalog(), m)
	var err error
	if !w.There {
		err = api.Newf(api.ModelFileNotFound, "The files of the model '%s' are not there.", m.ID)
	}
	if !streams {
		if err != nil {
			return err
		}
		return r.Reply(fasthttp.StatusOK, form.answer())
	}
	b := form.begun(nil)
	if err != nil {
		b = form.failed(b, err)
	} else {
		b = form.done(form.further(b, w.Bytes, w.Bytes))
	}
	r.Ctx.Response.Header.Set("Cache-Control", "no-cache")
	r.Send(fasthttp.StatusOK, form.media(), b)
	return nil
}

// pullForm is the format of a pull's messages: the events of the management routes, or the lines of the Ollama dialect. Methods
// append messages to b. A form serves one pull and is not safe for concurrent use.
type pullForm interface {
	media() string                              // of a stream
	begun(b []byte) []byte                      // first message
	further(b []byte, done, total int64) []byte // progress in bytes; total is 0 if unknown
	unchanged(b []byte) []byte                  // keepalive without progress
	failed(b []byte, err error) []byte          // last message
	done(b []byte) []byte                       // last message
	answer() any                                // of a call without a stream
}

// pullEvents is the format of the management routes.
type pullEvents struct {
	r *web.Request
	m *catalog.Model
}

func (pullEvents) media() string { return "text/event-stream; charset=utf-8" }

func (pullEvents) begun(b []byte) []byte { return b }

func (p pullEvents) further(b []byte, done, total int64) []byte {
	percent := 100.0
	if total > 0 {
		percent = float64(done) / float64(total) * 100
	}
	return event(b, "progress", progress{p.m.StableID(), 1, 1, done, total, percent})
}

func (pullEvents) unchanged(b []byte) []byte { return append(b, api.Ping...) }

func (p pullEvents) failed(b []byte, err error) []byte {
	return event(b, "error", json.RawMessage(p.r.Match.Dialect.Body(api.As(err), p.r.ID)))
}

func (p pullEvents) done(b []byte) []byte { return event(b, "complete", p.answer()) }

func (p pullEvents) answer() any { return doneAnswer{"success", "Model is installed: " + p.m.ID} }

// event appends a named event.
func event(b []byte, name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte("{}")
	}
	return api.AppendEvent(b, name, text)
}

// updates is the answer of POST /models/check-updates.
type updates struct {
	Status  string   `json:"status"`
	Message string   `json:"message"`
	Count   int      `json:"updates_available"`
	Models  []string `json:"models"`
}

// checkUpdates is POST /models/check-updates. There are never any: a model's weights change only under a new location.
func (s *Service) checkUpdates(r *web.Request) error {
	return r.Reply(fasthttp.StatusOK, updates{"success", "Weights are not replaced in place; publish changes under a new key or revision.", 0, []string{}})
}

// deleteModel is POST /delete, see remove.
func (s *Service) deleteModel(r *web.Request) error {
	values, err := r.Fields()
	if err != nil {
		return err
	}
	name := r.Match.Route.ModelName(values)
	if id, why := s.dir.Withheld(name.String()); why != "" {
		if err := s.forget(id); err != nil {
			return err
		}
		return r.Reply(fasthttp.StatusOK, doneAnswer{"success", "Deleted model: " + id})
	}
	m, err := s.named(r, values)
	if err != nil {
		return deleteUnknown(err, name)
	}
	if err := s.remove(r, m); err != nil {
		return r.UnlessLeft(err)
	}
	return r.Reply(fasthttp.StatusOK, doneAnswer{"success", "Deleted model: " + m.ID})
}

// remove unloads a model, and deletes its registration if it has one. It leaves the files of the operator's catalogue alone.
func (s *Service) remove(r *web.Request, m *catalog.Model) error {
	ctx, stop := r.ClientContext()
	defer stop()
	if err := s.dir.EnsureGone(ctx, m.ID); err != nil {
		return err
	}
	if strings.HasPrefix(m.ID, models.UserSpace) && s.cfg.Overlay != nil {
		return s.forget(m.ID)
	}
	return nil
}

// forget removes a registered model from the catalogue.
func (s *Service) forget(id string) error { return s.setRegistered(id, "") }

func deleteUnknown(err error, name jsonscan.Value) error {
	if api.As(err).Kind != api.ModelNotFound {
		return err
	}
	return api.Newf(api.DeleteUnknown, "The model '%.200s' does not exist.", name.String()).WithParam("model_name")
}
