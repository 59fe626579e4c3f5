package manage

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// runtimeSettings are the settings that can be changed at run time, with the checks of their values. The pool's table of
// run-time settings holds them as JSON.
var runtimeSettings = map[string]func(json.RawMessage) string{
	"max_loaded_models": checkLimits,
	"ctx_size":          checkContext,
	recipe.LlamaCpp:     checkBackend,
	"whispercpp":        checkBackend,
	"sdcpp":             checkBackend,
	"flm":               checkBackend,
}

// checkLimits checks for a limit for all types, or an object of limits by type.
func checkLimits(raw json.RawMessage) string {
	var n int
	if json.Unmarshal(raw, &n) == nil {
		return checkLimit(n)
	}
	var by map[string]int
	if json.Unmarshal(raw, &by) != nil {
		return "want a whole number, or an object of them by type"
	}
	for t, n := range by {
		if !policy.Type(t).Valid() {
			return "want the types llm, embedding, reranking, audio, image and tts only"
		}
		if why := checkLimit(n); why != "" {
			return why
		}
	}
	return ""
}

func checkLimit(n int) string {
	if (n < 1 || n > 1_000_000) && n != -1 {
		return "want 1 to 1000000, or -1 for no limit"
	}
	return ""
}

// checkContext checks ctx_size against llamacpp's range, the widest. Recipes with a narrower range ignore values
// outside it.
func checkContext(raw json.RawMessage) string {
	var n int64
	if json.Unmarshal(raw, &n) != nil {
		return "want a whole number of tokens, or -1 for automatic"
	}
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	if oe, ok := errors.AsType[*recipe.OptionError](recipe.CheckOptions(&llamacpp, recipe.Options{"ctx_size": n}, recipe.Client)); ok {
		return oe.Reason
	}
	return ""
}

// checkBackend checks for an object with backend and args.
func checkBackend(raw json.RawMessage) string {
	var by map[string]*string
	if json.Unmarshal(raw, &by) != nil || by == nil {
		return "want an object with backend and args, both texts"
	}
	for name := range by {
		if name != "backend" && name != "args" {
			return "want backend and args only"
		}
	}
	return ""
}

// checkEngine checks {backend, args} against every recipe that has them as options, as untrusted values.
func (s *Service) checkEngine(name string, raw json.RawMessage) string {
	var by map[string]*string
	if json.Unmarshal(raw, &by) != nil {
		return "" // a setting of another kind
	}
	cat := s.cfg.Catalog()
	for part, v := range by {
		option := name + "_" + part
		for _, id := range slices.Sorted(maps.Keys(cat.Recipes)) {
			rc := cat.Recipes[id]
			if _, has := rc.Options[option]; !has || v == nil || *v == "" {
				continue
			}
			if oe, ok := errors.AsType[*recipe.OptionError](recipe.CheckOptions(&rc, recipe.Options{option: *v}, recipe.Client)); ok {
				return part + ": " + oe.Reason
			}
		}
	}
	return ""
}

// unflatten puts Lemonade's flat names of an engine's settings, such as llamacpp_args, into the object of that engine. Its other
// member stays as it is.
func (s *Service) unflatten(m map[string]json.RawMessage) error {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		i := max(strings.LastIndexByte(name, '_'), 0)
		engine, part := name[:i], name[min(i+1, len(name)):]
		if _, known := runtimeSettings[engine]; !known || part != "args" && part != "backend" {
			continue
		}
		if m[engine] == nil {
			table, err := s.dir.Tables.Read(context.Background(), state.Runtime)
			if err != nil {
				return models.StoreError(err)
			}
			m[engine] = json.RawMessage(table[engine])
		}
		by := map[string]json.RawMessage{}
		_ = json.Unmarshal(m[engine], &by) // what is no object is replaced
		by[part] = m[name]
		whole, err := json.Marshal(by)
		if err != nil {
			return err
		}
		m[engine] = whole
		delete(m, name)
	}
	return nil
}

type configSetAnswer struct {
	Status  string   `json:"status"`
	Updated []string `json:"updated"`
}

// ConfigSet changes run-time settings; null removes one. If any value is invalid, nothing changes.
func (s *Service) ConfigSet(r *web.Request) error {
	m, err := r.Members()
	if err != nil {
		return err
	}
	given := slices.Sorted(maps.Keys(m))
	if err := s.unflatten(m); err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(m))
	for _, name := range names {
		check, known := runtimeSettings[name]
		if !known {
			return api.Newf(api.UnsupportedParameter, "There is no run-time setting '%.64s'.", name).WithParam(name)
		}
		if string(m[name]) == "null" {
			continue
		}
		why := check(m[name])
		if why == "" {
			why = s.checkEngine(name, m[name])
		}
		if why != "" {
			return api.Newf(api.InvalidType, "'%s': %s.", name, why).WithParam(name)
		}
	}
	for _, name := range names {
		value := string(m[name])
		if value == "null" {
			value = ""
		}
		if err := s.dir.Tables.Set(context.Background(), state.Runtime, name, value); err != nil {
			return err
		}
	}
	return r.Reply(fasthttp.StatusOK, configSetAnswer{"success", append([]string{}, given...)})
}

// ConfigGet returns the run-time settings, and the limits in force if none are set. Only managers see engines' arguments.
func (s *Service) ConfigGet(r *web.Request) error {
	table, err := s.dir.Tables.Read(context.Background(), state.Runtime)
	if err != nil {
		return models.StoreError(err)
	}
	snap, _ := s.dir.Fresh()
	limits := maxModels(snap)
	delete(limits, "transcription")
	out := map[string]any{"max_loaded_models": limits, "ctx_size": nil}
	for name, value := range table {
		if _, known := runtimeSettings[name]; known && json.Valid([]byte(value)) {
			if out[name] = json.RawMessage(value); !r.Manages() {
				out[name] = redactSetting(json.RawMessage(value))
			}
		}
	}
	return r.Reply(fasthttp.StatusOK, out)
}
