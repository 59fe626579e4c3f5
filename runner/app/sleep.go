package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power/exec"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// sleeper turns its machine off with a command, for hosts that cannot be turned off from outside. The command runs once
// for each stop that a sweep or an operator starts. By then this host's runner has confirmed that no request is open,
// and the host is not woken until the stop has ended.
type sleeper struct {
	host, boot string // of this runner: it must not turn off another runner's machine
	argv       []string
	mirror     *state.Mirror
	fail       func(ctx context.Context, token string) error // host.Host.FailSleep
	patience   time.Duration                                 // see sleepPatience
	log        *slog.Logger
}

// sleepPatience is how long the command may take, and then the machine to go off. The clock stands still while the
// machine is suspended.
const sleepPatience = 30 * time.Second

// sleepCommand reads --sleep-command; nil for an empty text.
func sleepCommand(text string) ([]string, error) {
	argv, err := recipe.SplitArgs(text)
	if err != nil {
		return nil, fmt.Errorf("--sleep-command: %w", err)
	}
	return argv, nil
}

// run watches the pool until ctx ends, which also ends a command in progress. Without a command it does nothing. If the
// command fails, or the machine is still on afterwards, the host serves again, and a later sleep runs the command again.
func (s *sleeper) run(ctx context.Context) {
	if len(s.argv) == 0 {
		return
	}
	power := exec.New(s.patience)
	self := catalog.Host{Name: s.host, Commands: &catalog.Commands{Sleep: s.argv}}
	for done := ""; ; {
		changed := s.mirror.Changed()
		pool := s.mirror.Snapshot()
		if stop := s.pendingStop(pool); stop != "" && stop != done {
			done = stop
			s.log.Info("turning this machine off", "command", s.argv[0])
			err := power.Sleep(ctx, self)
			if err == nil {
				err = s.awaitOff(ctx, stop)
			}
			if err != nil && ctx.Err() == nil {
				s.log.Error("this machine could not be turned off; the host serves again", "error", err)
				if err := s.fail(ctx, pool.Hosts[s.host].Fields["sleep_token"]); err != nil && !errors.Is(err, state.ErrGone) {
					s.log.Warn("the failed sleep could not be reported", "error", err)
				}
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// awaitOff waits until the machine is off, which ends this process or stops its clock, or until the stop is over. It
// returns an error if neither happens.
func (s *sleeper) awaitOff(ctx context.Context, stop string) error {
	late := time.After(s.patience)
	for {
		changed := s.mirror.Changed()
		if s.pendingStop(s.mirror.Snapshot()) != stop {
			return nil
		}
		select {
		case <-changed:
		case <-late:
			return fmt.Errorf("the command succeeded, but the machine is still on after %v", s.patience)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pendingStop returns the stop that this machine must carry out, "" for none.
func (s *sleeper) pendingStop(pool *state.Snapshot) string {
	me := pool.Hosts[s.host]
	if me == nil || me.Fields["boot"] != s.boot {
		return ""
	}
	return me.Stopping()
}
