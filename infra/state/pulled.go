package state

import "context"

// Pulled is the download progress of the weights that a load waits for.
type Pulled struct {
	Done, Total int64 // bytes; Total is 0 if unknown
}

// PutPulled records the progress of the weights that a queued load waits for; nil means that it waits for none (any
// more). ErrGone: the ticket is not queued on that host.
func (s *Store) PutPulled(ctx context.Context, host string, generation uint64, ticket string, p *Pulled) error {
	if p == nil {
		return s.evalStatus(ctx, "pulled", host, generation, ticket, "", 0)
	}
	return s.evalStatus(ctx, "pulled", host, generation, ticket, p.Done, p.Total)
}
