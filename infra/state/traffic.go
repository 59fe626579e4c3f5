package state

import (
	"context"
	"maps"
	"strconv"
	"strings"
)

// Copy is a model on a host.
type Copy struct{ Host, Model string }

// served begins the counters of requests: served:<host>:<model>. No host's name has a colon.
const served = "served:"

// Served counts a request that a model on a host has answered. It never blocks on I/O.
func (t *Toucher) Served(c Copy) { t.Count(served+c.Host+":"+c.Model, 1) }

// Stats reads the pool's counters but for those of Traffic.
func (s *Store) Stats(ctx context.Context) (map[string]float64, error) {
	counters, err := s.counters(ctx)
	maps.DeleteFunc(counters, func(name string, _ float64) bool { return strings.HasPrefix(name, served) })
	return counters, err
}

// Traffic reads how many requests each model has answered on each host, since the pool's beginning.
func (s *Store) Traffic(ctx context.Context) (map[Copy]float64, error) {
	counters, err := s.counters(ctx)
	if err != nil {
		return nil, err
	}
	out := map[Copy]float64{}
	for name, n := range counters {
		if rest, is := strings.CutPrefix(name, served); is {
			host, model, _ := strings.Cut(rest, ":")
			out[Copy{host, model}] = n
		}
	}
	return out, nil
}

func (s *Store) counters(ctx context.Context) (map[string]float64, error) {
	raw, err := s.hgetall(ctx, s.keys.stats())
	if err != nil {
		return nil, err
	}
	out := make(map[string]float64, len(raw))
	for k, v := range raw {
		out[k], _ = strconv.ParseFloat(v, 64)
	}
	return out, nil
}
