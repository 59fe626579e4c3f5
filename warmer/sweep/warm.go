package sweep

import (
	"context"
	"errors"
	"iter"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
)

// avoidAfterFailure is how long scheduled loads avoid a host whose wake failed.
const avoidAfterFailure = 2 * time.Minute

// warmNow returns the models that the catalog's warm list wants loaded at now.
func (r *run) warmNow(now time.Time) map[string]bool {
	out := map[string]bool{}
	for _, w := range r.catalog.Warm {
		if w.Active(now) {
			out[w.Model] = true
		}
	}
	return out
}

// warm queues a background load of every model that is wanted now and neither loaded nor queued.
func (r *run) warm(ctx context.Context) error {
	done := map[string]bool{}
	return r.decide(ctx, func(s *state.Snapshot) (bool, error) {
		for model, p := range r.placeMissing(s) {
			if done[model] {
				continue
			}
			a := Action{Kind: Warm, Host: p.Host, Model: model, Reason: p.Reason.String(), Result: Queued}
			if p.Refusal != nil {
				a.Result, a.Reason = Refused, p.Refusal.Explain()
			}
			var got state.Acquired
			if p.Refusal == nil && !r.DryRun {
				var err error
				got, err = r.store.Acquire(ctx, state.Want{Gateway: r.ID, Model: model, Host: p.Host, Revision: s.RevisionOf(p.Host, model), Unattended: true, Priority: "low"})
				if err != nil {
					return true, err
				}
			}
			done[model] = true
			r.addAction(a)
			if got.WakeToken != "" {
				r.wakeHost(ctx, got.Host, got.WakeToken, "wanted warm")
			}
			if got.Status != "" {
				return true, nil // the pool has changed: decide again
			}
		}
		return false, nil
	})
}

// placeMissing yields the models that are wanted now and neither loaded nor queued, with where each goes.
func (r *run) placeMissing(s *state.Snapshot) iter.Seq2[string, policy.Placement] {
	return func(yield func(string, policy.Placement) bool) {
		wanted, view, models := r.warmNow(r.now(s)), r.view(s), placement.View{Catalog: r.catalog}
		for _, m := range r.catalog.Models {
			if !wanted[m.ID] || isLoadedOrQueued(s, m.ID) {
				continue
			}
			if !yield(m.ID, policy.Place(view, models.Model(s, m.ID, ""), r.hostsToAvoid(s))) {
				return
			}
		}
	}
}

// isLoadedOrQueued reports whether the model is loaded, being loaded or queued on some host. Pulls do not count.
func isLoadedOrQueued(s *state.Snapshot, model string) bool {
	for _, h := range s.Hosts {
		if m := h.Models[model]; m != nil && h.State == policy.Ready && (m.State == policy.ModelLoaded || m.State == policy.ModelLoading) {
			return true
		}
		for _, t := range h.Queue {
			if t.Model == model && t.Kind == "load" && !t.PullOnly {
				return true
			}
		}
	}
	return false
}

// hostsToAvoid returns the hosts that get no scheduled load, with the reason: those that would have to be woken by a
// driver that this process lacks, those that are not to be woken now, and those whose wake has just failed.
func (r *run) hostsToAvoid(s *state.Snapshot) map[string]string {
	out := map[string]string{}
	add := func(name string, rec *state.HostRecord) {
		switch {
		case rec != nil && (rec.State == policy.Ready || rec.State == policy.Draining):
		case !r.power.Can(name):
			out[name] = "no driver for it in this process"
		case r.closed[name] != (catalog.Closed{}):
			out[name] = "not woken now by its rest or daily_host_hours"
		case rec != nil && s.NowMS-state.ParseNumber(rec.Fields["failed_ms"]) < avoidAfterFailure.Milliseconds():
			out[name] = "its wake has just failed"
		}
	}
	for name, rec := range s.Hosts {
		add(name, rec)
	}
	for _, h := range r.catalog.Hosts {
		add(h.Name, s.Hosts[h.Name])
	}
	return out
}

// wakeHost wakes a host under its power lease, in the background. If the driver accepts, the lease is left to expire:
// either the runner registers, or a waiting gateway or the next sweep takes over.
func (r *run) wakeHost(ctx context.Context, host, token, reason string) {
	r.switchLater(func() (Action, error) { return r.wakeNow(ctx, host, token, reason), nil })
}

func (r *run) wakeNow(ctx context.Context, host, token, reason string) Action {
	awake := false
	err := power.WithLease(ctx, r.PowerCall, func(ctx context.Context) error {
		err := r.store.RenewWake(ctx, host, token)
		if errors.Is(err, state.ErrAwake) {
			awake = true // its runner was faster than the driver, which still looks
			return state.ErrGone
		}
		return err
	}, func(ctx context.Context) error { return r.power.Wake(ctx, host) })
	a := Action{Kind: Wake, Host: host, Reason: reason, Result: Done}
	switch {
	case err == nil || awake:
	case ctx.Err() != nil: // the driver may have been heard; whoever waits for the host, or the next sweep, goes on
		a.Result, a.Error = Unfinished, err.Error()
	default:
		a.Result, a.Error = Failed, err.Error()
		if !errors.Is(err, power.ErrLeaseLost) {
			end := r.store.FailWake
			if power.Unfinished(err) {
				end = r.store.EndOverdueWake
			}
			_ = end(ctx, host, token, noCapacity, err.Error()) // an error means that another process has taken the lease
		}
	}
	return a
}

// noCapacity is the error table's code for a host that could not be woken.
const noCapacity = "no_capacity"
