package instance

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"time"
)

// Reason is why a machine is being reclaimed.
type Reason string

// The reasons. Both are final.
const (
	Interruption Reason = "interruption" // the spot instance is reclaimed at Notice.At
	Termination  Reason = "termination"  // its Auto Scaling group ends it or puts it into its warm pool, once the lifecycle hook is completed
)

// Notice announces that the machine is being reclaimed.
type Notice struct {
	Reason Reason
	At     time.Time // when an interrupted machine stops, by its own clock
}

// PollEvery is the default interval of Watch. A host must drain 5 s after the notice at the latest, which leaves room
// for one failure.
const PollEvery = 2 * time.Second

// Watch polls the metadata service at an interval, 0 for PollEvery, until it has a notice. It returns an error only
// when ctx ends. Failures of the service are retried, and logged once until it responds again. Advice to expect an
// interruption (a rebalance recommendation) is not a notice.
func Watch(ctx context.Context, m *Metadata, interval time.Duration, log *slog.Logger) (Notice, error) {
	if interval <= 0 {
		interval = PollEvery
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for failing := false; ; {
		n, found, err := poll(ctx, m)
		switch {
		case ctx.Err() != nil:
			return Notice{}, context.Cause(ctx)
		case found:
			return n, nil
		case err != nil && !failing:
			log.Warn("instance metadata unavailable, notices could be missed", "error", err)
		case err == nil && failing:
			log.Info("instance metadata available again")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return Notice{}, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// poll queries the service once.
func poll(ctx context.Context, m *Metadata) (n Notice, found bool, err error) {
	text, ok, err := m.Get(ctx, "spot/instance-action")
	if err != nil {
		return Notice{}, false, err
	}
	if ok {
		return interruption(text, time.Now()), true, nil
	}
	text, ok, err = m.Get(ctx, "autoscaling/target-lifecycle-state")
	if ok && isLeaving(text) {
		return Notice{Reason: Termination}, true, nil
	}
	return Notice{}, false, err
}

// warningTime is the time between the notice and the end of a spot instance.
const warningTime = 2 * time.Minute

// interruption parses a spot notice. A notice without a valid time counts as received just now.
func interruption(text string, now time.Time) Notice {
	var action struct {
		Time time.Time `json:"time"`
	}
	if err := json.Unmarshal([]byte(text), &action); err != nil || action.Time.IsZero() {
		action.Time = now.Add(warningTime)
	}
	return Notice{Reason: Interruption, At: action.Time}
}

// isLeaving reports whether a target lifecycle state is out of service: the end of the machine, or the warm pool, in
// which it is stopped (Warmed:Stopped) until the group needs it again. A spare that was never in service has no runner.
func isLeaving(target string) bool {
	return target == "Terminated" || strings.HasPrefix(target, "Warmed:")
}
