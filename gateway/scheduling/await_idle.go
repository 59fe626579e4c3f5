package scheduling

import (
	"context"
	"time"
)

// idlePoll is the interval at which AwaitIdle checks.
const idlePoll = 2 * time.Millisecond

// AwaitIdle waits until no work that requests started depends on this process: nobody waits, no ticket is being renewed
// or given up, and every host to be woken has been asked to wake. It returns ctx's error if ctx ends first. New work
// may start meanwhile. It serves gateways whose process is frozen between requests.
func (g *Gate) AwaitIdle(ctx context.Context) error {
	for !g.idle() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idlePoll):
		}
	}
	return nil
}

func (g *Gate) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.wakes {
		if !d.driverDone {
			return false
		}
	}
	return len(g.allGroups) == 0
}
