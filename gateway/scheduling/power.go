package scheduling

import (
	"context"
	"errors"
	"time"

	"reveille/gateway/api"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
)

const (
	powerPoll      = 200 * time.Millisecond // between reads of a waking host
	commitTries    = 20                     // attempts to commit a sleep, each on a newer snapshot
	confirmTimeout = 10 * time.Second       // for a runner to confirm, within the lease taken by the commit
	stopTimeout    = 2 * time.Minute        // for a driver to turn a host off
)

// WakeHost wakes a host at an operator's request and returns when its runner has registered, or immediately if it is
// awake. The wake continues when ctx ends. Errors are [*api.Error]: unknown_url for an unknown host, no_capacity for one
// that did not come up, daily_host_hours and host_resting for one that is not to be woken now, state_unavailable; or
// ctx's.
func (g *Gate) WakeHost(ctx context.Context, host string) error {
	if err := g.checkHost(host); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, g.cfg.Hold, api.Newf(api.QueueTimeout, "The host '%s' is not awake yet.", host))
	defer cancel()
	failed := ""
	for first := true; ; first = false {
		s, err := g.mirror.RefreshHosts(ctx, []string{host})
		if err != nil {
			return unavailable(err)
		}
		h := s.Hosts[host]
		switch {
		case h != nil && h.State == policy.Ready:
			return nil
		case first:
			now := time.Now()
			if c, closed := g.closedHosts(s, now)[host]; closed {
				return closedErr("The host '"+host+"'", c, now)
			}
			if h != nil {
				failed = h.Fields["failed_ms"]
			}
		case h != nil && h.Fields["failed_ms"] != failed:
			return api.Newf(api.NoCapacity, "The host '%s' could not be woken.", host).WithCause(errors.New(h.Error))
		}
		token, err := g.store.ForceWake(ctx, g.id, host)
		if err != nil {
			return unavailable(err)
		}
		g.wake(host, token)
		if err := pause(ctx, powerPoll); err != nil {
			return err
		}
	}
}

// SleepHost puts a host to sleep at an operator's request. Its open requests end, or are cut if force is set, its
// models are unloaded, its runner confirms, and its driver turns it off. SleepHost returns when that is done, or
// immediately if the host is asleep. Errors are [*api.Error]: unknown_url for an unknown host, model_busy (409) if work
// arrived or the host is waking, state_unavailable, not_supported without a driver here; or ctx's.
func (g *Gate) SleepHost(ctx context.Context, host string, force bool) error {
	if err := g.checkHost(host); err != nil {
		return err
	}
	if g.cfg.Stopper == nil {
		return api.New(api.NotSupported, "This gateway turns no host off.")
	}
	s, err := g.mirror.RefreshHosts(ctx, []string{host})
	if err != nil {
		return unavailable(err)
	}
	switch h := s.Hosts[host]; {
	case h == nil || h.State == policy.Asleep:
		return nil
	case h.State != policy.Ready:
		return api.Newf(api.ModelBusyConflict, "The host '%s' is %s.", host, h.State)
	}
	unloaded, err := g.unload(ctx, host, "", force)
	if err != nil {
		return err
	}
	for _, u := range unloaded {
		if u.Err != nil {
			return u.Err
		}
	}
	token, err := g.commitSleep(ctx, host)
	if err != nil {
		return err
	}
	return g.turnOff(ctx, host, token)
}

// ForgetHost removes a host from the pool at an operator's request. Errors are [*api.Error]: unknown_url for an unknown
// host, model_busy (409) for one that the catalog names, that is awake or that has work, state_unavailable.
func (g *Gate) ForgetHost(ctx context.Context, host string) error {
	if _, listed := g.catalog().Host(host); listed {
		return api.Newf(api.ModelBusyConflict, "The host '%s' is in the models file: remove it there first.", host)
	}
	switch err := g.store.Forget(ctx, host, 0); {
	case errors.Is(err, state.ErrGone):
		return api.Newf(api.UnknownURL, "There is no host '%s'.", host)
	case errors.Is(err, state.ErrWanted):
		return api.Newf(api.ModelBusyConflict, "The host '%s' is awake, is being turned on or off, or has work queued: put it to sleep first.", host)
	case err != nil:
		return unavailable(err)
	}
	_, _ = g.mirror.RefreshHosts(ctx, []string{host}) // best effort: the mirror also polls
	return nil
}

// checkHost returns an error for a host that neither the catalog nor the pool names.
func (g *Gate) checkHost(host string) error {
	if _, ok := g.catalog().Host(host); !ok && g.mirror.Snapshot().Hosts[host] == nil {
		return api.Newf(api.UnknownURL, "There is no host '%s'.", host)
	}
	return nil
}

// commitSleep makes an empty host drain and waits until its runner has confirmed.
func (g *Gate) commitSleep(ctx context.Context, host string) (token string, err error) {
	busy := api.Newf(api.ModelBusyConflict, "The host '%s' stays awake: it has new work, or its machine is in use.", host)
	for try := 0; token == ""; try++ {
		s, err := g.mirror.RefreshHosts(ctx, []string{host})
		if err != nil {
			return "", unavailable(err)
		}
		h := s.Hosts[host]
		if h == nil || h.State != policy.Ready || try == commitTries {
			return "", busy
		}
		switch token, err = g.store.CommitSleep(ctx, host, g.id, s.RevisionOf(host, ""), h.Fields["active_ms"]); {
		case errors.Is(err, state.ErrWanted):
			return "", busy
		case errors.Is(err, state.ErrStale):
			if err := pause(ctx, jitter(maxStalePause)); err != nil {
				return "", err
			}
		case err != nil:
			return "", unavailable(err)
		}
	}
	sleeps := map[string]string{host: token}
	_, err = power.AwaitSleep(ctx, g.store, g.id, sleeps, confirmTimeout, func(ctx context.Context) (*state.Snapshot, error) {
		s, err := g.mirror.RefreshHosts(ctx, []string{host})
		if err != nil {
			g.log.Debug("host not read", "host", host, "error", err)
			return nil, nil // until confirmTimeout is over
		}
		return s, nil
	}, func(string, string) {}) // the caller learns from sleeps what failed
	if err != nil {
		if errors.Is(g.store.CancelSleep(context.WithoutCancel(ctx), host, g.id, token), state.ErrGone) {
			return token, nil // it confirmed at the last moment
		}
		return "", busy
	}
	if sleeps[host] == "" { // AwaitSleep removed it: the sleep was canceled
		return "", busy
	}
	return token, nil
}

// turnOff turns off the machine of a host whose runner has confirmed. If this fails, the next sweep turns it off.
func (g *Gate) turnOff(ctx context.Context, host, token string) error {
	switch err := g.store.BeginStop(ctx, host, g.id, token); {
	case errors.Is(err, state.ErrWanted):
		return api.Newf(api.ModelBusyConflict, "The host '%s' has new work.", host)
	case errors.Is(err, state.ErrGone), errors.Is(err, state.ErrNotOwner):
		return nil // a sweep turns it off
	case err != nil:
		return unavailable(err)
	}
	failure, err := power.TurnOff(ctx, g.store, host, g.id, token, stopTimeout, g.cfg.Stopper.Sleep)
	if err != nil {
		g.log.Debug("could not report the end of a stop", "host", host, "error", err)
	}
	if errors.Is(failure, power.ErrServesAgain) {
		return api.Newf(api.NoCapacity, "The models of the host '%s' are unloaded, but it is still on: %v.", host, failure)
	}
	// A load that was queued meanwhile may have lost its last waiter, who would have woken the host now.
	if token, err := g.store.ClaimWake(ctx, g.id, host); err == nil {
		g.wake(host, token)
	}
	if failure != nil {
		return api.Newf(api.NoCapacity, "The models of the host '%s' are unloaded, but its machine could not be turned off; the warmer will retry.", host).WithCause(failure)
	}
	return nil
}

// pause waits for d, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
