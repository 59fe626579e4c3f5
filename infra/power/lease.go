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
	EndStop(ctx context.Context, host, owner, token, driverErr string) error
	ReleaseStop(ctx context.Context, host, owner, token string) error
}

// ErrServesAgain is TurnOff's error for a host whose sleep was over before its machine was off.
var ErrServesAgain = errors.New("its runner could not turn the machine off, or was restarted, and serves again; the runner's log has the cause")

// TurnOff turns off a host's machine. owner must have started the stop (state.Store.BeginStop). TurnOff renews the
// host's power lease while sleep runs, for at most limit, and then releases the lease; a later sweep continues an
// unfinished stop. driverErr is the error of sleep, or ErrServesAgain. storeErr is the store's error on release, such as
// state.ErrNotOwner if another owner has the lease by then.
func TurnOff(ctx context.Context, store StopStore, host, owner, token string, limit time.Duration, sleep func(ctx context.Context, host string) error) (driverErr, storeErr error) {
	driverErr = WithLease(ctx, limit,
		func(ctx context.Context) error { return store.HoldStop(ctx, host, owner, token) },
		func(ctx context.Context) error { return sleep(ctx, host) })
	ctx = context.WithoutCancel(ctx)
	switch {
	case driverErr == nil:
		storeErr = store.EndStop(ctx, host, owner, token, "")
	case Unfinished(driverErr):
		storeErr = store.ReleaseStop(ctx, host, owner, token)
	default:
		storeErr = store.EndStop(ctx, host, owner, token, driverErr.Error())
	}
	if driverErr != nil && errors.Is(storeErr, state.ErrGone) {
		driverErr = ErrServesAgain
	}
	return driverErr, storeErr
}

// LeaseMargin is how long before the end of a lease that it could not renew WithLease cancels its call. The margin
// covers the store's call that took the lease and the time a driver takes to return.
const LeaseMargin = 3 * time.Second

// WithLease calls do, for at most limit, while renew keeps the host's power lease, which lasts state.WakeLease and
// which the caller has just taken. It cancels do if another owner takes the lease, and also LeaseMargin before the end
// of a lease that it could not renew; the error then wraps ErrLeaseLost.
func WithLease(ctx context.Context, limit time.Duration, renew func(context.Context) error, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	expiry := time.AfterFunc(state.WakeLease-LeaseMargin, func() { lose(ErrLeaseLost) })
	defer expiry.Stop()
	done := make(chan struct{})
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
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
					expiry.Reset(state.WakeLease - LeaseMargin - time.Since(sent))
				case errors.Is(err, state.ErrNotOwner), errors.Is(err, state.ErrGone):
					lose(ErrLeaseLost)
					return
				}
			}
		}
	}()
	err := do(ctx)
	close(done)
	<-renewed
	if err != nil && errors.Is(context.Cause(ctx), ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", ErrLeaseLost, err)
	}
	return err
}
