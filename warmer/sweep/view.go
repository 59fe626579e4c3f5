package sweep

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// idleTimes parses the idle times set at run time: model → ms, negative for never. It ignores invalid values.
func idleTimes(table map[string]string) map[string]time.Duration {
	out := make(map[string]time.Duration, len(table))
	for model, text := range table {
		ms, err := strconv.ParseInt(text, 10, 64)
		switch {
		case err != nil:
		case ms < 0:
			out[model] = -1
		default:
			out[model] = max(time.Duration(ms)*time.Millisecond, 1)
		}
	}
	return out
}

// view returns the pool as input of decisions, with the current idle times.
func (r *run) view(s *state.Snapshot) policy.Snapshot {
	out := placement.View{Catalog: r.catalog}.Pool(s)
	slices.SortFunc(out.Hosts, func(a, b policy.Host) int { return strings.Compare(a.Name, b.Name) })
	out.Now = r.now(s)
	warm := r.warmNow(out.Now)
	for i := range out.Hosts {
		for j := range out.Hosts[i].Residents {
			m := &out.Hosts[i].Residents[j]
			m.Idle = r.idleTimeOr(m.ID, m.Idle)
			if warm[m.ID] {
				m.Idle = -1
			}
		}
	}
	return out
}

// idleTimeOr returns a model's idle time set at run time, or else the catalog's.
func (r *run) idleTimeOr(model string, modelIdle time.Duration) time.Duration {
	if idle, ok := r.idleTimes[model]; ok {
		return idle
	}
	return modelIdle
}
