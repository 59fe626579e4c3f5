package state

import (
	"context"
	"maps"
	"math"
	"strconv"
	"strings"
)

// CopyID is a model on a host.
type CopyID struct{ Host, Model string }

// servedPrefix starts the names of the counters of answers by copy.
const servedPrefix = "served:"

// servedBy returns the name of a copy's counter, served:<host>:<model>. Host names have no colon.
func servedBy(c CopyID) string { return servedPrefix + c.Host + ":" + c.Model }

// Stats returns the pool's counters except those of Traffic.
func (s *Store) Stats(ctx context.Context) (map[string]float64, error) {
	counters, err := s.counters(ctx)
	maps.DeleteFunc(counters, func(name string, _ float64) bool { return strings.HasPrefix(name, servedPrefix) })
	return counters, err
}

// Traffic returns how many requests each model has answered on each host since the pool was created.
func (s *Store) Traffic(ctx context.Context) (map[CopyID]float64, error) {
	counters, err := s.counters(ctx)
	if err != nil {
		return nil, err
	}
	out := map[CopyID]float64{}
	for name, n := range counters {
		if rest, ok := strings.CutPrefix(name, servedPrefix); ok {
			host, model, _ := strings.Cut(rest, ":")
			out[CopyID{host, model}] = n
		}
	}
	return out, nil
}

func (s *Store) counters(ctx context.Context) (map[string]float64, error) {
	raw, err := s.hash(ctx, s.keys.prefix+"stats")
	if err != nil {
		return nil, err
	}
	out := make(map[string]float64, len(raw))
	for k, v := range raw {
		if n, err := strconv.ParseFloat(v, 64); err == nil && !math.IsInf(n, 0) && !math.IsNaN(n) {
			out[k] = n
		}
	}
	return out, nil
}
