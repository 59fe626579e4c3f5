package state

import (
	"context"
	"strconv"
)

// CopyID is a model on a host.
type CopyID struct{ Host, Model string }

// Stats returns the pool's counters.
func (s *Store) Stats(ctx context.Context) (map[string]float64, error) {
	raw, err := s.hash(ctx, s.keys.prefix+"stats")
	if err != nil {
		return nil, err
	}
	out := make(map[string]float64, len(raw))
	for k, v := range raw {
		if n, err := strconv.ParseFloat(v, 64); err == nil && finite(n) {
			out[k] = n
		}
	}
	return out, nil
}
