package sweep

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
)

const (
	maxStops       = 8               // number of concurrent driver calls
	releaseTimeout = 2 * time.Second // for all hosts together
)

// unproven is why a Wake-on-LAN host is not put to sleep: nobody might be able to wake it.
const unproven = "Wake-on-LAN has not woken it yet; run gateway sleep and gateway wake once"

// pendingSleep is a host going to sleep.
type pendingSleep struct{ host, token, reason string }

// sleep puts idle hosts to sleep and finishes what an earlier sweep started. It returns while machines are being
// turned off.
func (r *run) sleep(ctx context.Context) error {
	pending, err := r.commit(ctx)
	if r.DryRun {
		return err
	}
	var asleep []pendingSleep
	if err == nil {
		asleep, err = r.confirm(ctx, pending)
	}
	if err != nil {
		if ctx.Err() != nil {
			r.releaseAll(ctx, pending)
		}
		return err
	}
	sem := make(chan struct{}, maxStops)
	for _, n := range asleep {
		r.switchLater(func() (Action, error) {
			sem <- struct{}{}
			defer func() { <-sem }()
			a, err := r.stopOne(ctx, n)
			if ctx.Err() != nil {
				r.releaseAll(ctx, []pendingSleep{n})
			}
			return a, err
		})
	}
	return nil
}

// releaseAll releases what an interrupted sweep holds. It cancels drains, and frees the power of hosts whose runner has
// confirmed, so that others can wake them or turn their machines off immediately. Otherwise the leases would have to
// expire.
func (r *run) releaseAll(ctx context.Context, pending []pendingSleep) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	for _, n := range pending {
		if r.store.CancelSleep(ctx, n.host, r.ID, n.token) != nil { // no longer draining
			_ = r.store.ReleaseStop(ctx, n.host, r.ID, n.token) // an error means that the sleep has ended
		}
	}
}

// commit makes the idle hosts drain. A host that this process cannot turn off and on stays up, and so does one that a
// scheduled load is about to use, and one whose Wake-on-LAN is not proven.
func (r *run) commit(ctx context.Context) ([]pendingSleep, error) {
	var pending []pendingSleep
	done := map[string]bool{}
	err := r.decide(ctx, func(s *state.Snapshot) (bool, error) {
		for _, p := range r.placeMissing(s) {
			done[p.Host] = true
		}
		idle := policy.Idle(r.view(s), r.now(s), r.SweepSettings).Sleep
		goes := func(host string) bool {
			return slices.ContainsFunc(idle, func(p policy.IdleHost) bool { return p.Host == host }) ||
				slices.ContainsFunc(pending, func(p pendingSleep) bool { return p.host == host })
		}
		for _, p := range idle {
			if done[p.Host] || !r.power.Can(p.Host) || r.isBelowAwake(s, p.Host, goes) {
				continue
			}
			if r.DryRun {
				done[p.Host] = true
				r.addAction(Action{Kind: Sleep, Host: p.Host, Reason: p.Reason.String()})
				continue
			}
			if placement.Unproven(r.catalog, s.Hosts[p.Host]) {
				done[p.Host] = true
				r.addAction(Action{Kind: Sleep, Host: p.Host, Reason: unproven, Result: Refused})
				continue
			}
			token, err := r.store.CommitSleep(ctx, p.Host, r.ID, s.RevisionOf(p.Host, ""), s.Hosts[p.Host].Fields["active_ms"])
			if errors.Is(err, state.ErrWanted) {
				done[p.Host] = true
				continue
			}
			if err != nil {
				return true, err
			}
			done[p.Host] = true
			pending = append(pending, pendingSleep{p.Host, token, p.Reason.String()})
		}
		return false, nil
	})
	return pending, err
}

// isBelowAwake reports whether a slot of a StatefulSet has an awake one after it that does not go to sleep with it: its
// pod would stay, so the host may as well serve.
func (r *run) isBelowAwake(s *state.Snapshot, host string, goes func(string) bool) bool {
	h, ok := r.catalog.Host(host)
	if !ok || h.Driver != catalog.DriverKubernetes {
		return false
	}
	for _, after := range r.catalog.Slots(h.Of) {
		rec := s.Hosts[after.Name]
		if after.Slot > h.Slot && rec != nil && rec.State != policy.Asleep && !goes(after.Name) {
			return true
		}
	}
	return false
}

// confirm waits for the runners of draining hosts to report that no request is open. It returns the hosts that are
// asleep, including those whose machine an earlier sweep did not turn off. A host whose runner does not confirm becomes
// ready again.
func (r *run) confirm(ctx context.Context, committed []pendingSleep) ([]pendingSleep, error) {
	own, tokens := map[string]pendingSleep{}, map[string]string{}
	for _, n := range committed {
		own[n.host], tokens[n.host] = n, n.token
	}
	s, err := power.AwaitSleep(ctx, r.store, r.ID, tokens, r.Confirm, r.store.Snapshot, func(host, reason string) {
		r.addAction(Action{Kind: Sleep, Host: host, Reason: reason, Result: CalledOff})
	})
	if err != nil {
		return nil, err
	}
	return r.listSleeping(s, own), nil
}

// listSleeping lists the hosts that are asleep and whose machine must still be turned off: those of this sweep, and those
// that an earlier one left. What this sweep has repaired is left to the next one. Redis may have been restored, and a host
// that serves may look like one that did not come; meanwhile its runner registers.
func (r *run) listSleeping(s *state.Snapshot, own map[string]pendingSleep) []pendingSleep {
	var out []pendingSleep
	for _, host := range slices.Sorted(maps.Keys(s.Hosts)) {
		token := s.Hosts[host].Fields["sleep_token"]
		if s.Hosts[host].State != policy.Asleep || token == "" || !r.power.Can(host) {
			continue
		}
		n, ok := own[host]
		if !ok {
			if old := r.begun.Hosts[host]; old == nil || old.Fields["sleep_token"] != token {
				continue
			}
			n = pendingSleep{host, token, "an earlier sweep did not finish"}
		}
		out = append(out, n)
	}
	return out
}

// stopOne turns one machine off, unless its host is wanted again or another sweep turns it off. The error is the
// store's.
func (r *run) stopOne(ctx context.Context, n pendingSleep) (Action, error) {
	a := Action{Kind: Sleep, Host: n.host, Reason: n.reason, Result: Done}
	switch err := r.store.BeginStop(ctx, n.host, r.ID, n.token); {
	case errors.Is(err, state.ErrWanted):
		a.Result, a.Reason = CalledOff, "work arrived"
		return a, nil
	case isDone(err) && err != nil:
		return Action{}, nil
	case err != nil:
		return Action{}, err
	}
	failure, err := power.TurnOff(ctx, r.store, n.host, r.ID, n.token, r.PowerCall, r.power.Sleep)
	if failure != nil {
		a.Result, a.Error = Failed, failure.Error()
		switch {
		case power.Unfinished(failure):
			a.Result = Unfinished
		case errors.Is(failure, power.ErrInUse):
			a.Result = Refused
		}
	}
	if isDone(err) {
		err = nil
	}
	return a, err
}
