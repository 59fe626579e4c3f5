package host

import (
	"encoding/json"
	"strconv"
	"strings"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// runtimeLimits are the limits with what the pool's run-time settings say over those of the flags: one number, or an
// object by type. What cannot be understood counts as not said.
func runtimeLimits(flags policy.Limits, table map[string]string) policy.Limits {
	text := table["max_loaded_models"]
	if text == "" {
		return flags
	}
	by := map[policy.Type]int{}
	var n int
	if json.Unmarshal([]byte(text), &n) == nil {
		for _, t := range policy.Types() {
			by[t] = n
		}
	} else if json.Unmarshal([]byte(text), &by) != nil {
		return flags
	}
	list := make([]string, 0, len(policy.Types()))
	for _, t := range policy.Types() {
		n, said := by[t]
		if !said {
			n = flags.Of(t)
		}
		list = append(list, strconv.Itoa(n))
	}
	limits, err := policy.ParseLimits(strings.Join(list, " "))
	if err != nil {
		return flags
	}
	return limits
}

// runtimeOptions are the load options of flags and environment with the pool's run-time settings over them: ctx_size, and
// by engine {backend, args}, which are its options NAME_backend and NAME_args. A value that the recipe refuses is left out.
func runtimeOptions(flags recipe.Options, table map[string]string, r *recipe.Recipe) recipe.Options {
	asked := map[string]any{}
	for name, text := range table {
		var n int64
		var by map[string]string
		switch {
		case name == "ctx_size" && json.Unmarshal([]byte(text), &n) == nil:
			asked[name] = n
		case name != "max_loaded_models" && json.Unmarshal([]byte(text), &by) == nil:
			for part, v := range by {
				asked[name+"_"+part] = v
			}
		}
	}
	out := flags.Clone()
	for name, v := range asked {
		one, err := r.ParseOptions(map[string]any{name: v}, recipe.Outside)
		if err != nil || one[name] == "" {
			continue
		}
		if out == nil {
			out = recipe.Options{}
		}
		out[name] = one[name]
	}
	return out
}
