package power_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"reveille/infra/power"
	"reveille/infra/state"
)

var errAway = errors.New("the Redis does not answer")

// stopStore is the state store of one stop. Its lease ends state.WakeLease after the last renewal that it executed.
type stopStore struct {
	away  func() bool   // the store does not answer
	slow  time.Duration // from the call to its response; the renewal is executed at once
	ends  time.Time
	left  bool
	ended bool
}

func (s *stopStore) HoldStop(ctx context.Context, _, _, _ string) error {
	if s.away() {
		return errAway
	}
	s.ends = time.Now().Add(state.WakeLease)
	time.Sleep(s.slow)
	return nil
}

func (s *stopStore) EndStop(context.Context, string, string, string, string) error {
	s.ended = true
	return nil
}

func (s *stopStore) ReleaseStop(context.Context, string, string, string) error {
	s.left = true
	return nil
}

// A call whose lease cannot be renewed ends before another may have the lease, and is left to the next sweep.
func TestTurnOffEndsBeforeItsLease(t *testing.T) {
	for name, away := range map[string]time.Duration{"from the start": 0, "after a while": 41 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				s := &stopStore{away: func() bool { return time.Since(start) >= away }, slow: 100 * time.Millisecond, ends: start.Add(state.WakeLease)}
				driverErr, storeErr := power.TurnOff(t.Context(), s, "box", "sweep", "1", time.Hour, func(ctx context.Context, _ string) error {
					<-ctx.Done()
					return errors.New("killed") // as a command's driver may say
				})
				if left := time.Until(s.ends); left < 2*time.Second {
					t.Errorf("the call ended %v before its lease", left)
				}
				if !errors.Is(driverErr, power.ErrLeaseLost) || storeErr != nil || !s.left || s.ended {
					t.Errorf("failure %v, told %v, left %v, ended %v", driverErr, storeErr, s.left, s.ended)
				}
			})
		})
	}
}

// A call goes on while its lease is renewed, and through a failover of Redis.
func TestTurnOffGoesOnWhileItsLeaseIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &stopStore{away: func() bool { return int(time.Since(start).Seconds())%60 >= 55 }}
		driverErr, storeErr := power.TurnOff(t.Context(), s, "box", "sweep", "1", time.Hour, func(ctx context.Context, _ string) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(10 * time.Minute):
				return nil
			}
		})
		if driverErr != nil || storeErr != nil || !s.ended {
			t.Errorf("after %v: failure %v, told %v, ended %v", time.Since(start), driverErr, storeErr, s.ended)
		}
	})
}

// A call ends when another has its lease.
func TestWithLeaseEndsWhenAnotherHasTheLease(t *testing.T) {
	for _, lost := range []error{state.ErrNotOwner, state.ErrGone} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			err := power.WithLease(t.Context(), time.Hour, func(context.Context) error { return lost }, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			if !errors.Is(err, power.ErrLeaseLost) || !errors.Is(err, context.Canceled) || time.Since(start) > state.WakeLease/3 {
				t.Errorf("%v: %v after %v", lost, err, time.Since(start))
			}
		})
	}
}
