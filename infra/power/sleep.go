package power

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// confirmPoll is the pause between two checks whether runners have confirmed.
const confirmPoll = 200 * time.Millisecond

// SleepStore is the part of the pool's state that AwaitSleep uses; *state.Store implements it.
type SleepStore interface {
	CancelSleep(ctx context.Context, host, owner, token string) error
}

// AwaitSleep waits until the runners of draining hosts have confirmed their sleeps, for at most limit, and then cancels
// the sleeps that are not confirmed. sleeps maps the hosts to the tokens of state.Store.CommitSleep; AwaitSleep removes
// the hosts that stay awake and calls calledOff with each and the reason, except for a sleep that another owner has
// taken over. read reads the hosts; it can return nil to be called again. AwaitSleep returns what read last returned.
// An error is that of read or of the store, or the cause of ctx; the sleeps left in the map are then undecided.
func AwaitSleep(ctx context.Context, store SleepStore, owner string, sleeps map[string]string, limit time.Duration, read func(context.Context) (*state.Snapshot, error), calledOff func(host, reason string)) (*state.Snapshot, error) {
	for end := time.Now().Add(limit); ; {
		s, err := read(ctx)
		if err != nil {
			return nil, err
		}
		if s != nil && !dropCanceled(s, sleeps, calledOff) {
			return s, nil
		}
		if time.Now().After(end) {
			break
		}
		select {
		case <-time.After(confirmPoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	for _, host := range slices.Sorted(maps.Keys(sleeps)) {
		switch err := store.CancelSleep(ctx, host, owner, sleeps[host]); {
		case err == nil:
			delete(sleeps, host)
			calledOff(host, "the runner did not confirm")
		case errors.Is(err, state.ErrNotOwner):
			delete(sleeps, host)
		case !errors.Is(err, state.ErrGone): // ErrGone: the runner has confirmed, so the sleep stays
			return nil, err
		}
	}
	return read(ctx)
}

// dropCanceled removes the sleeps that were called off, calls calledOff for each, and reports whether a runner has yet
// to confirm one.
func dropCanceled(s *state.Snapshot, sleeps map[string]string, calledOff func(host, reason string)) bool {
	draining := false
	for _, host := range slices.Sorted(maps.Keys(sleeps)) {
		h := s.Hosts[host]
		if h == nil || h.Fields["sleep_token"] != sleeps[host] || h.State != policy.Draining && h.State != policy.Asleep {
			delete(sleeps, host)
			calledOff(host, "work arrived, or its machine is in use")
			continue
		}
		draining = draining || h.State == policy.Draining
	}
	return draining
}
