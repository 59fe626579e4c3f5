package app

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Bounds of the pause before a local host that ended on its own is started again.
const (
	firstRestart = 100 * time.Millisecond
	lastRestart  = 30 * time.Second
	steady       = time.Minute // a host that lived this long starts with the first pause again
)

// keeper starts local hosts again that ended by themselves, after a pause that doubles with each end in a row. It is
// safe for concurrent use.
type keeper struct {
	wake func(ctx context.Context, host string) error
	log  *slog.Logger

	mu     sync.Mutex
	pauses map[string]time.Duration
	ended  map[string]time.Time
}

func newKeeper(wake func(context.Context, string) error, log *slog.Logger) *keeper {
	return &keeper{wake: wake, log: log, pauses: map[string]time.Duration{}, ended: map[string]time.Time{}}
}

// again starts a host after its pause, unless ctx ends first.
func (k *keeper) again(ctx context.Context, host string) {
	pause := k.next(host, time.Now())
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return
	}
	if err := k.wake(ctx, host); err != nil && ctx.Err() == nil {
		k.log.Error("local host could not be restarted", "host", host, "error", err)
	}
}

// next is the pause before the next start of a host that ended now.
func (k *keeper) next(host string, now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	pause := k.pauses[host] * 2
	if pause == 0 || now.Sub(k.ended[host]) > steady {
		pause = firstRestart
	}
	pause = min(pause, lastRestart)
	k.pauses[host], k.ended[host] = pause, now
	return pause
}
