package app

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

// Bounds of the pause before a local host that ended on its own is started again.
const (
	firstRestart = 100 * time.Millisecond
	lastRestart  = 30 * time.Second
)

// keeper starts local hosts again that ended by themselves, after a pause that doubles with each end in a row. A host
// that ends more than 2*lastRestart after the end before starts with the first pause again. It is safe for concurrent
// use.
type keeper struct {
	wake   func(ctx context.Context, host string) error
	log    *slog.Logger
	pauses *flowcontrol.Backoff
}

func newKeeper(wake func(context.Context, string) error, log *slog.Logger) *keeper {
	return &keeper{wake: wake, log: log, pauses: flowcontrol.NewBackOff(firstRestart, lastRestart)}
}

// again starts a host after its pause, unless ctx ends first.
func (k *keeper) again(ctx context.Context, host string) {
	k.pauses.Next(host, time.Now())
	select {
	case <-time.After(k.pauses.Get(host)):
	case <-ctx.Done():
		return
	}
	if err := k.wake(ctx, host); err != nil && ctx.Err() == nil {
		k.log.Error("local host could not be restarted", "host", host, "error", err)
	}
}
