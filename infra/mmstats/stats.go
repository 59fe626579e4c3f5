package mmstats

import "strings"

// Counters of the pool's statistics (infra/state), of which each model has its own: their names end in a colon and the
// model's id. A medium that occurs twice in a request counts once, and one that llama-server took from its own prompt
// cache not at all.
const (
	CountHitsL1       = "media_hits_l1_total"       // media served from a runner's memory
	CountHitsL2       = "media_hits_l2_total"       // media served from Redis
	CountMisses       = "media_misses_total"        // media encoded
	CountSavedSeconds = "media_saved_seconds_total" // what the encoder took for the media that were served
)

// CounterOf is the name of a model's counter.
func CounterOf(counter, model string) string { return counter + ":" + model }

// IsCounterOf reports whether a counter of the pool's statistics is one model's.
func IsCounterOf(name string) bool { return strings.Contains(name, ":") }

// Stats are what the encoder cache did for one model, or for several, on all hosts.
type Stats struct {
	HitsL1       int64   `json:"hits_l1_total"`
	HitsL2       int64   `json:"hits_l2_total"`
	Misses       int64   `json:"misses_total"`
	SavedSeconds float64 `json:"saved_seconds_total"`
}

// Hits are media served, from wherever.
func (t Stats) Hits() int64 { return t.HitsL1 + t.HitsL2 }

// Plus is the sum of both.
func (t Stats) Plus(u Stats) Stats {
	return Stats{t.HitsL1 + u.HitsL1, t.HitsL2 + u.HitsL2, t.Misses + u.Misses, t.SavedSeconds + u.SavedSeconds}
}

// ReadStats finds the models' counters among the pool's statistics. Models without media are not in it.
func ReadStats(counters map[string]float64) map[string]Stats {
	out := map[string]Stats{}
	for name, n := range counters {
		counter, model, ok := strings.Cut(name, ":") // ids may hold colons, counters do not
		if !ok {
			continue
		}
		t := out[model]
		switch counter {
		case CountHitsL1:
			t.HitsL1 = int64(n)
		case CountHitsL2:
			t.HitsL2 = int64(n)
		case CountMisses:
			t.Misses = int64(n)
		case CountSavedSeconds:
			t.SavedSeconds = n
		default:
			continue
		}
		out[model] = t
	}
	return out
}
