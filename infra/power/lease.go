package power

import (
	"context"
	"errors"
	"fmt"
	"time"

	"reveille/infra/state"
)

// StopStore is the part of the pool's state that TurnOff uses; *state.Store implements it.
type StopStore interface {
	HoldStop(ctx context.Context, host, owner, token string) error
	EndStop(ctx context.Context, host, owner, token, failure string) error
	ReleaseStop(ctx context.Context, host, owner, token string) error
}

// TurnOff turns off a host's machine. owner must have started the stop (state.Store.BeginStop). TurnOff renews the
// host's power lease while sleep runs, for at most limit, and then releases the lease; a later sweep continues an
// unfinished stop. failure is the error of sleep. told is the store's error when the lease was released; it may have
// passed to another owner.
func TurnOff(ctx context.Context, store StopStore, host, owner, token string, limit time.Duration, sleep func(ctx context.Context, host string) error) (failure, told error) {
	failure = WithLease(ctx, limit,
		func(ctx context.Context) error { return store.HoldStop(ctx, host, owner, token) },
		func(ctx context.Context) error { return sleep(ctx, host) })
	ctx = context.WithoutCancel(ctx)
	switch {
	case failure == nil:
		told = store.EndStop(ctx, host, owner, token, "")
	case Unfinished(failure):
		told = store.ReleaseStop(ctx, host, owner, token)
	default:
		told = store.EndStop(ctx, host, owner, token, failure.Error())
	}
	return failure, told
}

// LeaseMargin is how long before the end of a lease that is not renewed WithLease cancels the call under it. It covers
// the store's call that took the lease and the time a driver takes to return.
const LeaseMargin = 3 * time.Second

// WithLease calls do, for at most limit, while renew keeps a lease of state.WakeLease, which the caller has just taken.
// It cancels do, and the error is then also ErrLeaseLost, when another holder has the lease, or LeaseMargin before the
// lease ends because it could not be renewed.
func WithLease(ctx context.Context, limit time.Duration, renew func(context.Context) error, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	lapse := time.AfterFunc(state.WakeLease-LeaseMargin, func() { lose(ErrLeaseLost) })
	defer lapse.Stop()
	done := make(chan struct{})
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		tick := time.NewTicker(state.WakeLease / 3)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				sent := time.Now()
				switch err := renew(ctx); {
				case err == nil:
					lapse.Reset(state.WakeLease - LeaseMargin - time.Since(sent))
				case errors.Is(err, state.ErrNotOwner), errors.Is(err, state.ErrGone):
					lose(ErrLeaseLost)
					return
				}
			}
		}
	}()
	err := do(ctx)
	close(done)
	<-kept
	if err != nil && errors.Is(context.Cause(ctx), ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", ErrLeaseLost, err)
	}
	return err
}
