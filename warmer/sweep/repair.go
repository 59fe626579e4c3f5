package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// repair fixes the state that dead processes left behind. Each fix is checked again by its script. Its snapshot, the
// first of the sweep, is also what the hours of the hosts are counted by.
func (r *run) repair(ctx context.Context) error {
	s, err := r.store.Snapshot(ctx)
	if err != nil {
		return err
	}
	r.begun = s
	r.countHours(ctx, s)
	r.readClosed(ctx, s)
	for _, name := range slices.Sorted(maps.Keys(s.Hosts)) {
		h := s.Hosts[name]
		for _, fix := range []func(context.Context, *state.Snapshot, *state.HostRecord) error{r.markLost, r.dropUnwaited, r.endUnseen, r.endStranded, r.wakeAbandoned, r.cancelAbandonedSleep, r.forgetDeparted} {
			if err := fix(ctx, s, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// isDone reports whether a repair succeeded or turned out not to be needed.
func isDone(err error) bool {
	return err == nil || errors.Is(err, state.ErrGone) || errors.Is(err, state.ErrNotOwner)
}

// attempt makes a repair and records it; a dry run only records it.
func (r *run) attempt(a Action, fix func() error) error {
	if r.DryRun {
		r.addAction(a)
		return nil
	}
	return r.record(a, fix())
}

// record records a repair that was made.
func (r *run) record(a Action, err error) error {
	if err == nil {
		r.addAction(a)
	}
	if isDone(err) {
		return nil
	}
	return err
}

// markLost marks a silent host as lost.
func (r *run) markLost(ctx context.Context, s *state.Snapshot, h *state.HostRecord) error {
	stored := policy.HostState(h.Fields["state"])
	if h.State != policy.Lost || stored == h.State {
		return nil
	}
	a := Action{Kind: Lost, Host: h.Name, Reason: "silent for " + age(s, h.SeenMS), Result: Done}
	return r.attempt(a, func() error { return r.store.MarkLost(ctx, h.Name) })
}

// dropUnwaited drops queued loads without waiters. A new load has its waiter from the start.
func (r *run) dropUnwaited(ctx context.Context, _ *state.Snapshot, h *state.HostRecord) error {
	for _, t := range h.Queue {
		if t.Kind != "load" || t.State != state.TicketQueued || t.Waiters > 0 || t.Fields["background"] == "1" {
			continue
		}
		a := Action{Kind: Drop, Host: h.Name, Model: t.Model, Reason: "no request waits for ticket " + t.ID, Result: Done}
		if err := r.attempt(a, func() error { return r.store.DropUnwaited(ctx, r.ID, t.ID) }); err != nil {
			return err
		}
	}
	return nil
}

// endUnseen marks a host that has long been lost as asleep, with its machine, which may still run, to be turned off.
func (r *run) endUnseen(ctx context.Context, s *state.Snapshot, h *state.HostRecord) error {
	if h.Fields["state"] != string(policy.Lost) || len(h.Queue) > 0 || s.NowMS-h.SeenMS <= r.WakeLimit.Milliseconds() || !r.power.Can(h.Name) {
		return nil
	}
	a := Action{Kind: Stranded, Host: h.Name, Reason: "lost for " + age(s, h.SeenMS) + " and not wanted", Result: Done}
	return r.attempt(a, func() error { return r.store.EndUnseen(ctx, h.Name, r.WakeLimit) })
}

// endStranded ends the wake of a host that did not register and is no longer wanted.
func (r *run) endStranded(ctx context.Context, s *state.Snapshot, h *state.HostRecord) error {
	start := state.ParseNumber(h.Fields["waking_ms"])
	if h.State != policy.Waking || len(h.Queue) > 0 || s.NowMS-start <= r.WakeLimit.Milliseconds() {
		return nil
	}
	a := Action{Kind: Stranded, Host: h.Name, Reason: "waking for " + age(s, start) + " and not wanted any more", Result: Done}
	return r.attempt(a, func() error { return r.store.EndStranded(ctx, h.Name, r.WakeLimit) })
}

// wakeAbandoned wakes a host that has queued loads if its power lease has expired.
func (r *run) wakeAbandoned(ctx context.Context, s *state.Snapshot, h *state.HostRecord) error {
	if h.State == policy.Ready || h.State == policy.Draining || !r.power.Can(h.Name) || !slices.ContainsFunc(h.Queue, hasWaiters) {
		return nil
	}
	if r.DryRun {
		return nil // only an attempt to take the lease shows whether it is held
	}
	token, err := r.store.ClaimWake(ctx, r.ID, h.Name)
	if err != nil || token == "" {
		return err
	}
	if start := state.ParseNumber(h.Fields["waking_ms"]); h.State == policy.Waking && s.NowMS-start > r.WakeLimit.Milliseconds() {
		why := fmt.Sprintf("no registration from the host within %v", r.WakeLimit)
		return r.record(Action{Kind: Stranded, Host: h.Name, Reason: why, Result: Done}, r.store.EndOverdueWake(ctx, h.Name, token, noCapacity, why))
	}
	r.wakeHost(ctx, h.Name, token, "loads are queued and no gateway woke it")
	return nil
}

func hasWaiters(t state.TicketRecord) bool {
	return t.Kind == "load" && (t.Waiters > 0 || t.Fields["background"] == "1")
}

// forgetDeparted forgets a host that the catalog does not name, such as one that left it or a machine of an Auto
// Scaling group, after a long time without a heartbeat, if it is off or lost.
func (r *run) forgetDeparted(ctx context.Context, s *state.Snapshot, h *state.HostRecord) error {
	asleep := h.State == policy.Asleep && !(h.PowerOffPending() && r.power.Can(h.Name))
	lastSeen := max(h.SeenMS, state.ParseNumber(h.Fields["waking_ms"]), state.ParseNumber(h.Fields["failed_ms"]))
	if _, listed := r.catalog.Host(h.Name); listed || !asleep && h.State != policy.Lost || len(h.Queue) > 0 || s.NowMS-lastSeen < r.ForgetAfter.Milliseconds() {
		return nil
	}
	a := Action{Kind: Forget, Host: h.Name, Reason: "not in the catalog, and has not registered", Result: Done}
	if lastSeen > 0 {
		a.Reason = "not in the catalog, and no heartbeat for " + age(s, lastSeen)
	}
	err := r.attempt(a, func() error { return r.store.Forget(ctx, h.Name, r.ForgetAfter) })
	if errors.Is(err, state.ErrWanted) {
		return nil
	}
	return err
}

// cancelAbandonedSleep makes a host ready again if the sweep that started its drain is gone.
func (r *run) cancelAbandonedSleep(ctx context.Context, _ *state.Snapshot, h *state.HostRecord) error {
	token := h.Fields["sleep_token"]
	if h.State != policy.Draining || token == "" || r.DryRun {
		return nil
	}
	return r.record(Action{Kind: Recall, Host: h.Name, Reason: "the sweep that put it to sleep is gone", Result: Done}, r.store.CancelSleep(ctx, h.Name, r.ID, token))
}

// stopOrphans turns off machines that run although their host is asleep or has never registered: their runner was not
// seen for twice OrphanAfter, the second half of it by a state store that has kept its data. The first boot of a
// machine takes longest, and a store that lost its data knows no runner until they register again.
func (r *run) stopOrphans(ctx context.Context) error {
	if r.machines == nil {
		return nil
	}
	machines, err := r.machines(ctx)
	if err != nil {
		r.addAction(Action{Kind: Orphan, Reason: "cannot list the cloud's machines", Result: Failed, Error: err.Error()})
		return nil
	}
	running := len(machines)
	r.report.Running = &running
	s, err := r.store.Snapshot(ctx)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, m := range machines {
		if slots := r.catalog.Slots(m.Host); len(slots) > 0 {
			if m.Host = slotOf(s, slots, m.ID, named); m.Host == "" {
				continue
			}
			named[m.Host] = true
		}
		up := time.Since(m.Since).Round(time.Second)
		h := s.Hosts[m.Host]
		if up < r.OrphanAfter || h != nil && (h.State != policy.Asleep || h.PowerOffPending()) || !r.power.Can(m.Host) {
			continue
		}
		if r.DryRun && up < 2*r.OrphanAfter {
			continue // a dry run leaves no note
		}
		a := Action{Kind: Orphan, Host: m.Host, Reason: "its machine has run for " + up.String() + " without a runner", Result: Done}
		if err := r.attempt(a, func() error { return r.store.EndOrphan(ctx, m.Host, up, r.OrphanAfter) }); err != nil {
			return err
		}
	}
	return nil
}

// slotOf returns the host of a group that stands for a machine: the one that the machine has claimed, else the first
// that sleeps and has none, so that its sleep ends a machine without a slot; "" if there is no further one.
func slotOf(s *state.Snapshot, slots []*catalog.Host, machine string, named map[string]bool) string {
	free := ""
	for _, slot := range slots {
		h := s.Hosts[slot.Name]
		if h != nil && h.Machine() == machine {
			return slot.Name
		}
		if free == "" && !named[slot.Name] && (h == nil || h.State == policy.Asleep && h.Machine() == "") {
			free = slot.Name
		}
	}
	return free
}

// age returns the time since a timestamp in ms, or "ever" for 0.
func age(s *state.Snapshot, ms int64) string {
	if ms == 0 {
		return "ever"
	}
	return (time.Duration(s.NowMS-ms) * time.Millisecond).Round(time.Second).String()
}
