package instance

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"time"
)

// Reason is why a machine is taken away.
type Reason string

// The reasons. Both are final: there is no taking back.
const (
	Interruption Reason = "interruption" // the spot market wants it, at Notice.At
	Termination  Reason = "termination"  // its Auto Scaling group ends it or puts it into its warm pool, once it is told that it may
)

// Notice is the word that the machine is taken away.
type Notice struct {
	Reason Reason
	At     time.Time // of an interruption: when the machine stops, by its own clock
}

// PollEvery is how often Watch asks. A host that drains 5 s after the notice at the latest leaves room for one failure.
const PollEvery = 2 * time.Second

// Watch asks the metadata service each time every has passed, 0 for PollEvery, until it has a notice. The error is ctx's
// end and no other: a service that does not answer is asked again, and logged once until it does. Advice to expect an
// interruption (a rebalance recommendation) is no notice.
func Watch(ctx context.Context, m *Metadata, every time.Duration, log *slog.Logger) (Notice, error) {
	if every <= 0 {
		every = PollEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for failing := false; ; {
		n, found, err := look(ctx, m)
		switch {
		case ctx.Err() != nil:
			return Notice{}, context.Cause(ctx)
		case found:
			return n, nil
		case err != nil && !failing:
			log.Warn("the instance's metadata cannot be read: notices would be missed", "error", err)
		case err == nil && failing:
			log.Info("the instance's metadata can be read again")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return Notice{}, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// look asks once.
func look(ctx context.Context, m *Metadata) (n Notice, found bool, err error) {
	text, there, err := m.Get(ctx, "spot/instance-action")
	if err != nil {
		return Notice{}, false, err
	}
	if there {
		return interruption(text, time.Now()), true, nil
	}
	text, there, err = m.Get(ctx, "autoscaling/target-lifecycle-state")
	if there && leaves(text) {
		return Notice{Reason: Termination}, true, nil
	}
	return Notice{}, false, err
}

// warning is how long before the end of a spot instance its notice comes.
const warning = 2 * time.Minute

// interruption reads a spot notice. One without a time that can be understood is taken to have come just now.
func interruption(text string, now time.Time) Notice {
	var said struct {
		Time time.Time `json:"time"`
	}
	if err := json.Unmarshal([]byte(text), &said); err != nil || said.Time.IsZero() {
		said.Time = now.Add(warning)
	}
	return Notice{Reason: Interruption, At: said.Time}
}

// leaves reports whether a target lifecycle state is out of the group's service: the end of the machine, or the warm pool, in
// which it is stopped (Warmed:Stopped) until the group needs it again. A spare that was never in service has no runner.
func leaves(target string) bool {
	return target == "Terminated" || strings.HasPrefix(target, "Warmed:")
}
