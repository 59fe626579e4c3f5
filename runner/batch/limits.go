package batch

import "cmp"

// Defaults of Limits.
const (
	DefaultNBatch = 2048
	contextFactor = 2 // allows two batches in flight
)

// Limits bound what is packed and what is in flight. All are in tokens, including special ones.
type Limits struct {
	NBatch  int // packing capacity of one engine call; default DefaultNBatch
	NUBatch int // largest single sequence; default NBatch
	Context int // bound on all tokens in flight; default twice NBatch
	// Positions is the model's own bound on a sequence; 0 means unknown.
	Positions int
}

// WithDefaults replaces zero fields with their defaults.
func (l Limits) WithDefaults() Limits {
	l.NBatch = cmp.Or(l.NBatch, DefaultNBatch)
	l.NUBatch = cmp.Or(l.NUBatch, l.NBatch)
	l.Context = cmp.Or(l.Context, contextFactor*l.NBatch)
	return l
}

// Longest returns the length of the longest sequence that can be embedded.
func (l Limits) Longest() int {
	if l.Positions > 0 {
		return min(l.NUBatch, l.Positions)
	}
	return l.NUBatch
}

// maxActive returns the maximum number of batches in flight.
func (l Limits) maxActive() int { return max(1, l.Context/l.NBatch) }
