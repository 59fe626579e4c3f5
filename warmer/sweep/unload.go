package sweep

import (
	"context"
	"strconv"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// unload queues the unload of every model that has been idle for too long, and of copies that are spare. The runner
// carries it out if that is still so by its own count.
func (r *run) unload(ctx context.Context) error {
	done := map[state.CopyID]bool{}
	return r.decide(ctx, func(s *state.Snapshot) (more bool, err error) {
		changed := map[string]bool{} // hosts that have changed since the snapshot
		for _, u := range policy.Idle(r.view(s), r.now(s), r.SweepSettings).Unload {
			p := state.CopyID{Host: u.Host, Model: u.Model}
			if done[p] {
				continue
			}
			if changed[u.Host] {
				more = true
				continue
			}
			a := Action{Kind: Unload, Host: u.Host, Model: u.Model, Reason: u.Reason.String(), Result: Queued}
			condition := "only_idle_ms"
			if u.Spare {
				condition = "spare_ms"
			}
			if !r.DryRun {
				_, err := r.store.Acquire(ctx, state.Want{
					Gateway: r.ID, Model: u.Model, Unload: true, Host: u.Host, Revision: s.RevisionOf(u.Host, ""), Unattended: true,
					Fields: map[string]string{condition: strconv.FormatInt(r.idleTime(u.Model).Milliseconds(), 10)},
				})
				if err != nil {
					return true, err
				}
			}
			done[p], changed[u.Host] = true, !r.DryRun
			r.addAction(a)
		}
		return more, nil
	})
}

// idleTime returns the idle time after which the model is unloaded.
func (r *run) idleTime(model string) time.Duration {
	modelIdle := time.Duration(0)
	if m, ok := r.catalog.Model(model); ok {
		modelIdle = r.catalog.Policy(m).Idle
	}
	if idle := r.idleTimeOr(model, modelIdle); idle != 0 {
		return idle
	}
	return r.Idle
}
