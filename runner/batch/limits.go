package batch

import (
	"cmp"
	"errors"
	"fmt"
)

// Defaults of Limits.
const (
	DefaultNBatch = 2048
	contextFactor = 2 // allows two batches in flight
)

// Limits bound what is packed and what is in flight. All except NSeqMax are in tokens, including special ones.
type Limits struct {
	NBatch  int // packing capacity of one engine call; default DefaultNBatch
	NUBatch int // largest single sequence; default NBatch
	Context int // bound on all tokens in flight; default twice NBatch
	NSeqMax int // the engine's setting for sequences; reported only, packing ignores it
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

// Validate reports every rule that l violates: NBatch > 0, NBatch ≥ NUBatch > 0, Context ≥ NBatch, NSeqMax and
// Positions ≥ 0. Call WithDefaults first.
func (l Limits) Validate() error {
	var errs []error
	if l.NBatch <= 0 {
		errs = append(errs, fmt.Errorf("n_batch %d: want more than 0", l.NBatch))
	}
	if l.NUBatch <= 0 {
		errs = append(errs, fmt.Errorf("n_ubatch %d: want more than 0", l.NUBatch))
	}
	if l.NUBatch > l.NBatch {
		errs = append(errs, fmt.Errorf("n_ubatch %d: want at most n_batch, %d", l.NUBatch, l.NBatch))
	}
	if l.Context < l.NBatch {
		errs = append(errs, fmt.Errorf("context %d: want at least n_batch, %d", l.Context, l.NBatch))
	}
	if l.Positions < 0 || l.NSeqMax < 0 {
		errs = append(errs, errors.New("positions and n_seq_max: want 0 or more"))
	}
	return errors.Join(errs...)
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
