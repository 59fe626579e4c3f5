package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// loadAnswer is the answer of POST /load.
type loadAnswer struct {
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
	merge   bool           // add arguments to those of the layers below
	pinned  *bool
	save    bool
}

// load loads a model, with the request's own options, and waits until it is ready; ?wait=false waits only until the
// load is queued. Options are always passed, {} for none, so that the model is loaded with exactly the options in
// force. An inference request accepts the model as it is.
func (s *Server) load(r *request) error {
	q, err := r.loadRequest()
	if err != nil {
		return err
	}
	if q.save {
		if err := r.needsLocalAdmin(); err != nil {
			return err
		}
	}
	if s.draining.Load() {
		return api.GoingAway()
	}
	ctx, stop := r.clientContext()
	defer stop()
	was := s.stateOf(q.model.ID)
	ask := scheduling.LoadAsk{
		Model: q.model.ID, Options: json.RawMessage(q.options.Canonical()), Merge: q.merge, Pinned: q.pinned, Wait: r.query("wait") != "false",
	}
	endpoint, info, err := s.cfg.Gate.Load(ctx, ask)
	if err != nil {
		return r.unlessLeft(err)
	}
	if err := r.keep(q); err != nil {
		return err
	}
	answer := loadAnswer{
		Status: "loading", Message: "Model " + q.model.ID + " is being loaded", Name: q.model.ID, Checkpoint: q.model.Checkpoint,
		Recipe: q.model.Recipe, Type: string(q.model.Type), Device: q.model.Devices.String(), LoadMS: info.LoadMS,
	}
	r.loadHeaders(q.model.ID, was, endpoint, info)
	if !ask.Wait {
		return r.reply(fasthttp.StatusAccepted, answer)
	}
	s.uses.note(endpoint.Host, q.model.ID)
	answer.Status, answer.Message = "success", "Loaded model: "+q.model.ID
	snap, _ := s.refreshSnapshot(ctx) // so that a later listing is exact; an error does not undo the load
	if h := snap.Hosts[endpoint.Host]; h != nil && h.Models[q.model.ID] != nil {
		m := h.Models[q.model.ID]
		answer.Checkpoint, answer.Recipe = cmp.Or(m.Checkpoint, answer.Checkpoint), cmp.Or(m.Recipe, answer.Recipe)
		answer.Device, answer.LoadMS = cmp.Or(m.Device, answer.Device), m.LoadMS
	}
	return r.reply(fasthttp.StatusOK, answer)
}

// keep saves the settings that outlive the load, once the load has succeeded.
func (r *request) keep(q *loadRequest) error {
	if !q.save {
		return nil
	}
	saved := recipe.Options{}
	for name, v := range q.options {
		if v != nil {
			saved[name] = v
		}
	}
	if q.merge {
		saved[recipe.MergeArgs] = true
	}
	return r.s.tables.set(context.Background(), state.SavedOptions, q.model.ID, saved.Canonical())
}

func (r *request) loadHeaders(model, was string, endpoint scheduling.Endpoint, info scheduling.LoadInfo) {
	h := &r.ctx.Response.Header
	h.Set(api.HeaderModel, model)
	h.Set(api.HeaderModelState, was)
	if endpoint.Host != "" {
		h.Set(api.HeaderRunner, endpoint.Host)
	}
	if info.Cold {
		h.Set(api.HeaderColdStart, "1")
		h.Set(api.HeaderLoadMS, strconv.FormatInt(info.LoadMS, 10))
	}
	h.Set(api.HeaderQueueMS, strconv.FormatInt(max(0, info.Waited.Milliseconds()-info.LoadMS), 10))
	if len(info.Evicted) > 0 {
		h.Set(api.HeaderEvicted, strings.Join(info.Evicted, ","))
	}
}

// loadRequest checks the body of POST /load. If it finds a mistake, nothing has changed.
func (r *request) loadRequest() (*loadRequest, error) {
	values, err := r.fields()
	if err != nil {
		return nil, err
	}
	q := &loadRequest{}
	if q.model, err = r.named(values); err != nil {
		return nil, err
	}
	m, err := r.members()
	if err != nil {
		return nil, err
	}
	for name, into := range map[string]*bool{"merge_args": &q.merge, "save_options": &q.save} {
		b, err := flagOf(m, name)
		if err != nil {
			return nil, err
		}
		*into = b != nil && *b
	}
	if q.pinned, err = flagOf(m, "pinned"); err != nil {
		return nil, err
	}
	delete(m, "pinned") // a recipe could take these for its own options
	delete(m, "merge_args")
	q.options, err = r.s.optionsOf(q.model, m)
	return q, err
}

// optionsOf finds the load options among the members of a body and checks them against the model's recipe. It ignores
// members that no recipe knows, as in every request, and a null for another recipe's option.
func (s *Server) optionsOf(m *catalog.Model, body map[string]json.RawMessage) (recipe.Options, error) {
	cat := s.cfg.Catalog()
	rc, there := cat.Recipes[m.Recipe]
	if !there {
		return nil, api.Newf(api.ModelLoadError, "The recipe of the model '%s' is not in the catalogue.", m.ID)
	}
	raw := map[string]any{}
	for name, value := range body {
		v, err := scalar(value)
		if err != nil {
			return nil, err
		}
		if _, own := rc.Options[name]; own || name == recipe.MergeArgs || v != nil && isOption(cat, name) {
			raw[name] = v
		}
	}
	opts, err := rc.ParseOptions(raw, recipe.Outside)
	if err != nil {
		return nil, optionError(err, rc.Options)
	}
	return opts, nil
}

// scalar decodes a value; numbers keep their digits.
func scalar(raw json.RawMessage) (v any, err error) {
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, api.New(api.InvalidJSON, "Invalid JSON body.").WithCause(err)
	}
	return v, nil
}

// isOption reports whether any recipe has an option of that name.
func isOption(cat *catalog.Catalog, name string) bool {
	for _, rc := range cat.Recipes {
		if _, has := rc.Options[name]; has {
			return true
		}
	}
	return false
}

// optionError turns the first error of ParseOptions into the client's error.
func optionError(err error, own map[string]recipe.OptionSpec) *api.Error {
	var oe *recipe.OptionError
	if !errors.As(err, &oe) {
		return api.New(api.InvalidType, "The load options are not acceptable.").WithCause(err)
	}
	kind := api.UnsupportedParameter
	if spec, has := own[oe.Name]; has && spec.Kind != recipe.KindArgs {
		kind = api.InvalidType
	}
	return api.Newf(kind, "Option '%s': %s.", oe.Name, oe.Reason).With(oe.Name)
}
