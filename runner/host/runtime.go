package host

import (
	"encoding/json"
	"strconv"
	"strings"

	"reveille/infra/policy"
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
