package host

import (
	"encoding/json"
	"strconv"
	"strings"

	"reveille/infra/policy"
)

// runtimeLimits returns the flags' limits, overridden by the pool's run-time settings: one number, or an object by
// type. Invalid settings are ignored.
func runtimeLimits(flags policy.Limits, table map[string]string) policy.Limits {
	text := table["max_loaded_models"]
	if one, err := policy.ParseLimits(text); err == nil {
		return one
	}
	byType := map[policy.Type]int{}
	if json.Unmarshal([]byte(text), &byType) != nil {
		return flags
	}
	list := make([]string, 0, len(policy.Types()))
	for _, t := range policy.Types() {
		n, ok := byType[t]
		if !ok {
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
