package power_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
)

// cancelStore answers CancelSleep by host, and records the calls.
type cancelStore struct {
	answers map[string]error
	called  []string
}

func (s *cancelStore) CancelSleep(_ context.Context, host, _, _ string) error {
	s.called = append(s.called, host)
	return s.answers[host]
}

func TestAwaitSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		store := &cancelStore{answers: map[string]error{"late": state.ErrGone, "quick": state.ErrGone, "taken": state.ErrNotOwner}}
		host := func(st policy.HostState, token string) *state.HostRecord {
			return &state.HostRecord{State: st, Fields: map[string]string{"sleep_token": token}}
		}
		reads := 0
		read := func(context.Context) (*state.Snapshot, error) {
			if reads++; reads == 1 {
				return nil, nil // nothing is known yet
			}
			s := &state.Snapshot{Hosts: map[string]*state.HostRecord{
				"wanted": host(policy.Ready, ""), "silent": host(policy.Draining, "2"), "late": host(policy.Draining, "3"), "taken": host(policy.Draining, "4"),
				"quick": host(policy.Draining, "5"),
			}}
			if time.Since(start) > time.Second {
				s.Hosts["quick"].State = policy.Asleep
			}
			return s, nil
		}
		sleeps := map[string]string{"wanted": "1", "silent": "2", "late": "3", "taken": "4", "quick": "5", "gone": "6"}
		off := map[string]string{}
		s, err := power.AwaitSleep(t.Context(), store, "me", sleeps, 10*time.Second, read, func(host, reason string) { off[host] = reason })
		if err != nil || s == nil {
			t.Fatalf("snapshot %v, %v", s, err)
		}
		if want := map[string]string{"late": "3", "quick": "5"}; !maps.Equal(sleeps, want) {
			t.Errorf("asleep %v, want %v", sleeps, want)
		}
		if want := map[string]string{"wanted": "work arrived, or its machine is in use", "gone": "work arrived, or its machine is in use", "silent": "the runner did not confirm"}; !maps.Equal(off, want) {
			t.Errorf("called off %v, want %v", off, want)
		}
	})
}

func TestAwaitSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errAway)
		defer cancel()
		store := &cancelStore{answers: map[string]error{}}
		sleeps := map[string]string{"box": "1"}
		_, err := power.AwaitSleep(ctx, store, "me", sleeps, time.Minute, func(context.Context) (*state.Snapshot, error) { return nil, nil }, func(string, string) {})
		if !errors.Is(err, errAway) || len(sleeps) != 1 || len(store.called) != 0 {
			t.Errorf("error %v, sleeps %v, cancelled %v", err, sleeps, store.called)
		}
	})
}
