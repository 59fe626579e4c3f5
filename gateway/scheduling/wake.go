package scheduling

import (
	"context"
	"errors"
	"fmt"
	"time"

	"reveille/gateway/api"
	"reveille/infra/policy"
	"reveille/infra/state"
)

const (
	wakeRenew = state.WakeLease / 3
	wakePoll  = 500 * time.Millisecond // between checks for the end of a wake once the driver is done
)

// powerLease is this gateway's exclusive right to wake a host, which ends unless it is renewed. It belongs to no
// request: those that caused it may all be gone.
type powerLease struct {
	token string
	stop  context.CancelFunc
}

// wake is wakeLocked, if there is a token.
func (g *Gate) wake(host, token string) {
	if token != "" {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.wakeLocked(host, token)
	}
}

// wakeLocked starts to wake a host under its power lease. A newer token replaces an older one.
func (g *Gate) wakeLocked(host, token string) {
	old := g.wakes[host]
	if g.closed || old != nil && old.token == token {
		return // closing: another gateway takes over when the lease ends; same token: already waking
	}
	if old != nil {
		old.stop()
	}
	ctx, stop := context.WithTimeout(g.life, g.cfg.WakeLimit)
	lease := &powerLease{token: token, stop: stop}
	g.wakes[host] = lease
	g.work.Go(func() {
		defer stop()
		g.runWake(ctx, host, token)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.wakes[host] == lease {
			delete(g.wakes, host)
		}
	})
}

// runWake calls the driver and renews the power lease until the host's runner has registered, the driver has refused,
// the limit has passed, or another gateway has the lease. The driver ends with ctx.
func (g *Gate) runWake(ctx context.Context, host, token string) {
	began := time.Now()
	g.log.Info("waking host", "host", host)
	driver := make(chan error, 1)
	g.work.Go(func() {
		driver <- g.waker.Wake(ctx, host)
	})
	poll := time.NewTicker(wakePoll)
	defer poll.Stop()
	renewed := began
	for {
		select {
		case <-ctx.Done():
			switch {
			case g.life.Err() != nil:
				g.releaseWake(host, token)
			case errors.Is(ctx.Err(), context.DeadlineExceeded):
				g.wakeFailed(host, token, g.store.EndOverdueWake, fmt.Errorf("no registration from the host within %v", g.cfg.WakeLimit))
			}
			return
		case err := <-driver:
			if err != nil && ctx.Err() == nil {
				g.wakeFailed(host, token, g.store.FailWake, err)
				return
			}
			continue
		case <-poll.C:
		}
		if !g.awake(host) && time.Since(renewed) < wakeRenew {
			continue
		}
		renewed = time.Now()
		switch err := g.store.RenewWake(ctx, host, token); {
		case errors.Is(err, state.ErrAwake):
			took := time.Since(began)
			g.mu.Lock()
			smooth(g.estimates.wake, host, took)
			g.hostBackoff.succeed(host)
			g.mu.Unlock()
			g.log.Info("host is awake", "host", host, "took", took)
			return
		case errors.Is(err, state.ErrNotOwner):
			g.log.Info("the power lease passed to another gateway", "host", host)
			return
		}
	}
}

// awake reports whether the mirror shows the host awake; the caller then queries the store immediately.
func (g *Gate) awake(host string) bool {
	h := g.mirror.Snapshot().Hosts[host]
	return h != nil && h.State == policy.Ready
}

// wakeFailed releases the power lease with the reason. If the call fails, the lease expires and another gateway tries.
func (g *Gate) wakeFailed(host, token string, end func(ctx context.Context, host, token, code, message string) error, cause error) {
	g.log.Warn("host could not be woken", "host", host, "error", cause)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.life), releaseTimeout)
	defer cancel()
	if err := end(ctx, host, token, api.NoCapacity.Code(), cause.Error()); err != nil {
		g.log.Debug("could not report a failed wake", "host", host, "error", err)
	}
}

// releaseWake returns a power lease because this gateway stops.
func (g *Gate) releaseWake(host, token string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.life), releaseTimeout)
	defer cancel()
	if err := g.store.ReleaseWake(ctx, host, token); err != nil {
		g.log.Debug("could not hand back the power lease", "host", host, "error", err)
	}
}
