package manage

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// runtimeSettings are the settings that can be changed at run time, with the checks of their values. The pool's table
// of run-time settings holds them as JSON.
var runtimeSettings = map[string]func(s *Service, name string, raw json.RawMessage) string{
	"max_loaded_models": checkLimits,
	"ctx_size":          checkContext,
	recipe.LlamaCpp:     (*Service).checkBackend,
	"whispercpp":        (*Service).checkBackend,
}

// checkLimits checks max_loaded_models.
func checkLimits(_ *Service, _ string, raw json.RawMessage) string {
	if _, err := (policy.Limits{}).Override(raw); err != nil {
		return err.Error()
	}
	return ""
}

// checkContext checks ctx_size against llamacpp's range, the widest. Recipes with a narrower range ignore values
// outside it.
func checkContext(_ *Service, _ string, raw json.RawMessage) string {
	var n int64
	if json.Unmarshal(raw, &n) != nil {
		return "want a whole number of tokens, or -1 for automatic"
	}
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	return refusedOption(&llamacpp, "ctx_size", n)
}

// checkBackend checks an object with an engine's backend against every recipe that has a choice of its backends.
// Arguments come from the operator's files only.
func (s *Service) checkBackend(name string, raw json.RawMessage) string {
	var by map[string]*string
	if json.Unmarshal(raw, &by) != nil || by == nil {
		return "want an object with a text 'backend'"
	}
	for part, v := range by {
		switch {
		case v == nil || *v == "":
		case part != "backend":
			return "want 'backend' only"
		default:
			for _, rc := range s.cfg.Catalog().Recipes {
				if _, has := rc.Options[name+"_backend"]; !has {
					continue
				}
				if why := refusedOption(&rc, name+"_backend", *v); why != "" {
					return "backend: " + why
				}
			}
		}
	}
	return ""
}

// refusedOption returns why a recipe refuses an option's value, "" if it does not.
func refusedOption(rc *recipe.Recipe, name string, v any) string {
	_, err := rc.ParseOptions(recipe.Options{name: v}, recipe.Client)
	if oe, ok := errors.AsType[*recipe.OptionError](err); ok {
		return oe.Reason
	}
	return ""
}

// maxModels returns the slots of each type: the largest of the hosts' limits, none while no host has reported one.
func maxModels(snap *state.Snapshot) map[policy.Type]int {
	out := map[policy.Type]int{}
	for _, h := range snap.Hosts {
		limits, err := policy.ParseLimits(h.Limits)
		if err != nil {
			continue
		}
		for _, t := range policy.Types() {
			if n := limits.Of(t); n < 0 || out[t] < 0 {
				out[t] = -1
			} else {
				out[t] = max(out[t], n)
			}
		}
	}
	return out
}

// ConfigSet changes run-time settings; null removes one. If any value is invalid, nothing changes.
func (s *Service) ConfigSet(r *web.Request) error {
	m, err := r.Members()
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(m))
	for _, name := range names {
		check, known := runtimeSettings[name]
		if !known {
			return api.Newf(api.UnsupportedParameter, "Unknown run-time setting '%.64s'.", name).WithParam(name)
		}
		if string(m[name]) == "null" {
			continue
		}
		if why := check(s, name, m[name]); why != "" {
			return api.Newf(api.InvalidType, "'%s': %s.", name, why).WithParam(name)
		}
	}
	for _, name := range names {
		value := string(m[name])
		if value == "null" {
			value = ""
		}
		if err := s.registry.Tables.Set(context.Background(), state.Runtime, name, value); err != nil {
			return err
		}
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"status": "success", "updated": append([]string{}, names...)})
}

// ConfigGet returns the run-time settings, and the limits in force if none are set and a host has reported them.
func (s *Service) ConfigGet(r *web.Request) error {
	table, err := s.registry.Tables.Read(context.Background(), state.Runtime)
	if err != nil {
		return models.StoreError(err)
	}
	snap, _ := s.registry.Fresh()
	out := map[string]any{"ctx_size": nil}
	if limits := maxModels(snap); len(limits) > 0 {
		out["max_loaded_models"] = limits
	}
	for name, value := range table {
		if _, known := runtimeSettings[name]; known && json.Valid([]byte(value)) {
			out[name] = json.RawMessage(value)
		}
	}
	return r.Reply(fasthttp.StatusOK, out)
}
