package manage

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// loadResponse is the response of POST /load.
type loadResponse struct {
	Status     string `json:"status"`
	Message    string `json:"message"`
	Name       string `json:"model_name"`
	Checkpoint string `json:"checkpoint"`
	Recipe     string `json:"recipe"`
	Type       string `json:"type"`
	Device     string `json:"device"`
	LoadMS     int64  `json:"load_ms"`
}

// loadRequest is a checked POST /load.
type loadRequest struct {
	model   *catalog.Model
	options recipe.Options // as in the request: null values skip the saved options
	pinned  *bool
	save    bool
}

// Load loads a model, with the request's own options, and waits until it is ready; ?wait=false waits only until the
// Load is queued. Options are always passed, {} for none, so that the model is loaded with exactly the options in
// force. An inference request accepts the model as it is.
func (s *Service) Load(r *web.Request) error {
	q, err := s.loadRequest(r)
	if err != nil {
		return err
	}
	if q.save {
		if err := r.NeedsLocalAdmin(); err != nil {
			return err
		}
	}
	if s.cfg.Draining() {
		return api.ShuttingDown()
	}
	ctx, stop := r.ClientContext()
	defer stop()
	was := s.registry.StateOf(q.model.ID)
	ask := scheduling.LoadRequest{
		Model: q.model.ID, Options: json.RawMessage(q.options.Canonical()), Pinned: q.pinned, Wait: r.Query("wait") != "false",
	}
	endpoint, info, err := s.cfg.Gate.Load(ctx, ask)
	if err != nil {
		return r.UnlessClientGone(err)
	}
	if err := s.saveSettings(q); err != nil {
		return err
	}
	response := loadResponse{
		Status: "loading", Message: "Model " + q.model.ID + " is being loaded", Name: q.model.ID, Checkpoint: q.model.Checkpoint,
		Recipe: q.model.Recipe, Type: string(q.model.Type), Device: q.model.Devices.String(), LoadMS: info.LoadMS,
	}
	s.loadHeaders(r, q.model.ID, was, endpoint, info)
	if !ask.Wait {
		return r.Reply(fasthttp.StatusAccepted, response)
	}
	s.registry.Uses.Note(endpoint.Host, q.model.ID)
	response.Status, response.Message = "success", "Loaded model: "+q.model.ID
	snap, _ := s.registry.Refresh(ctx) // so that a later listing is exact; an error does not undo the load
	if h := snap.Hosts[endpoint.Host]; h != nil && h.Models[q.model.ID] != nil {
		m := h.Models[q.model.ID]
		response.Checkpoint, response.Recipe = cmp.Or(m.Checkpoint, response.Checkpoint), cmp.Or(m.Recipe, response.Recipe)
		response.Device, response.LoadMS = cmp.Or(m.Device, response.Device), m.LoadMS
	}
	return r.Reply(fasthttp.StatusOK, response)
}

// saveSettings saves the settings that outlive the load, once the load has succeeded. A null skipped the saved value
// for this load only, so that value stays.
func (s *Service) saveSettings(q *loadRequest) error {
	if !q.save {
		return nil
	}
	saved := recipe.Options{}
	before := s.registry.Saved(q.model.ID)
	for name, v := range q.options {
		if v == nil {
			v = before[name]
		}
		if v != nil {
			saved[name] = v
		}
	}
	return s.registry.Tables.Set(context.Background(), state.SavedOptions, q.model.ID, saved.Canonical())
}

func (s *Service) loadHeaders(r *web.Request, model, was string, endpoint scheduling.Endpoint, info scheduling.LoadInfo) {
	h := &r.Ctx.Response.Header
	h.Set(api.HeaderModel, model)
	h.Set(api.HeaderModelState, was)
	if endpoint.Host != "" {
		h.Set(api.HeaderHost, endpoint.Host)
	}
	if info.Cold {
		h.Set(api.HeaderColdStart, "1")
		h.Set(api.HeaderLoadMS, strconv.FormatInt(info.LoadMS, 10))
	}
	h.Set(api.HeaderQueueMS, strconv.FormatInt(max(0, info.Waited.Milliseconds()-info.LoadMS), 10))
	if evicted := r.Key.Visible(info.Evicted); len(evicted) > 0 {
		h.Set(api.HeaderEvicted, strings.Join(evicted, ","))
	}
}

// loadRequest checks the body of POST /load. If it finds a mistake, nothing has changed.
func (s *Service) loadRequest(r *web.Request) (*loadRequest, error) {
	model, err := s.namedModel(r)
	if err != nil {
		return nil, err
	}
	m, err := r.Members()
	if err != nil {
		return nil, err
	}
	var flags struct {
		Save   bool  `json:"save_options"`
		Pinned *bool `json:"pinned"`
	}
	if err := r.Decode(&flags); err != nil {
		return nil, err
	}
	q := &loadRequest{model: model, pinned: flags.Pinned, save: flags.Save}
	delete(m, "pinned") // a recipe could take it for its own option
	q.options, err = s.registry.OptionsOf(q.model, m)
	return q, err
}
