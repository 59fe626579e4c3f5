package app

import (
	"context"
	"fmt"
	"log/slog"

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
	log        *slog.Logger
}

// sleepCommand reads --sleep-command; nil for an empty text.
func sleepCommand(text string) ([]string, error) {
	argv, err := recipe.SplitArgs(text)
	if err != nil {
		return nil, fmt.Errorf("--sleep-command: %w", err)
	}
	return argv, nil
}

// run watches the pool until ctx ends, which also ends a command in progress. Without a command it does nothing. A
// command that fails is logged. The sweep notices that the machine is still on, and its next stop runs the command
// again.
func (s *sleeper) run(ctx context.Context) {
	if len(s.argv) == 0 {
		return
	}
	power := exec.New(0)
	self := catalog.Host{Name: s.host, Commands: &catalog.Commands{Sleep: s.argv}}
	for done := ""; ; {
		changed := s.mirror.Changed()
		if stop := s.pendingStop(s.mirror.Snapshot()); stop != "" && stop != done {
			done = stop
			s.log.Info("turning this machine off", "command", s.argv[0])
			if err := power.Sleep(ctx, self); err != nil && ctx.Err() == nil {
				s.log.Error("this machine could not be turned off", "error", err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
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
