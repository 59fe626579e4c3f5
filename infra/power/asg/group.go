package asg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"time"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/power/ec2"
	"reveille/infra/power/internal/awserr"
	"reveille/infra/state"
)

// A host that is a slot of a group has the machine that claimed it (state.HostRecord.Machine). Which machine a new one
// will be, nobody knows before it boots. So a wake makes sure that the group has as many machines as slots that have
// one or are waking, and a sleep ends the slot's own machine and the group's need for it. A machine that does not
// register keeps no slot from its wake: a slot whose wake was overdue still counts, until its sleep has ended a machine
// that has no slot, the one that was launched first.

// leaseFor bounds what is done under a group's lease.
const (
	leaseFor   = 30 * time.Second
	leaseEnds  = 5 * time.Second // before that the calls end
	clockSkew  = 5 * time.Second // between AWS and Redis
	leasePause = 200 * time.Millisecond
)

// WithPool returns the driver for the groups of a pool.
func (d *Driver) WithPool(p power.Pool) power.Driver {
	return &Driver{d.cfg, p}
}

// groupView is a group as one of its slots sees it.
type groupView struct {
	*scalingGroup
	machine member    // the slot's own, unless that is gone
	waking  bool      // the slot is
	claim   string    // who has claimed the slot, perhaps a machine that is gone
	claimed int       // machines that have a slot; one that is about to go does not count, here and below
	free    []string  // machines that have none
	waiting int       // other slots that are waking and have no machine
	before  int       // of these, the ones with a lower number
	overdue int       // other slots that were woken for a machine that has never claimed one, and that is to be ended
	since   time.Time // when this slot's wake began
}

// size is how many machines the other slots want.
func (v *groupView) size() int { return v.claimed + v.waiting + v.overdue }

// coming reports whether the slot will have one of the machines that have no slot yet, if it is waking.
func (v *groupView) coming() bool { return v.before+v.overdue < len(v.free) }

// needed is how many machines the group must be able to have for this slot to get one.
func (v *groupView) needed() int { return v.claimed + v.before + v.overdue + 1 }

// look reads the group and its slots.
func (d *Driver) look(ctx context.Context, api *awsquery.Client, host catalog.Host) (*groupView, error) {
	g, err := group(ctx, api, host)
	if err != nil {
		return nil, err
	}
	pool, err := d.pool.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", power.ErrThrottled, err)
	}
	v := &groupView{scalingGroup: g, since: time.Now()}
	slotOf := map[string]string{} // also of hosts that the catalog does not name any more
	for name, h := range pool.Hosts {
		if h.Machine() != "" {
			slotOf[h.Machine()] = name
		}
	}
	has := map[string]bool{}
	for _, m := range g.Instances {
		slot := slotOf[m.ID]
		if slot == host.Name {
			v.machine = m
		}
		switch {
		case leaves(m.State):
		case slot != "":
			has[slot] = true
			v.claimed++
		default:
			v.free = append(v.free, m.ID)
		}
	}
	for n := 1; n <= host.Max; n++ {
		name := catalog.SlotName(host.Of, n)
		h := pool.Hosts[name]
		if h == nil {
			continue
		}
		waking := h.State == policy.Waking
		switch {
		case name == host.Name:
			v.claim, v.waking = h.Machine(), waking
			if waking {
				v.since = time.UnixMilli(state.ParseNumber(h.Fields["waking_ms"])).Add(-clockSkew)
			}
		case waking && !has[name]:
			v.waiting++
			if n < host.Slot {
				v.before++
			}
		case h.PowerOffPending() && h.Machine() == "":
			v.overdue++
		}
	}
	return v, nil
}

// change looks at the group and changes it, while no other process does.
func (d *Driver) change(ctx context.Context, host catalog.Host, do func(context.Context, *awsquery.Client, *groupView) error) error {
	api, err := d.client(ctx, host)
	if err != nil {
		return err
	}
	owner := rand.Text()
	for {
		err := d.pool.LeaseGroup(ctx, host.Of, owner, leaseFor)
		if err == nil {
			break
		}
		if !errors.Is(err, state.ErrNotOwner) {
			return fmt.Errorf("%w: %w", power.ErrThrottled, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(leasePause):
		}
	}
	defer func() { _ = d.pool.LeaseGroup(context.WithoutCancel(ctx), host.Of, owner, 0) }()
	ctx, cancel := context.WithTimeout(ctx, leaseFor-leaseEnds)
	defer cancel()
	v, err := d.look(ctx, api, host)
	if err != nil {
		return err
	}
	return do(ctx, api, v)
}

// wakeSlot makes sure that the group has or gets a machine for the slot. Errors are those of Wake; the group's size is
// then what its other slots want.
func (d *Driver) wakeSlot(ctx context.Context, host catalog.Host) error {
	on, since := false, time.Now()
	err := d.change(ctx, host, func(ctx context.Context, api *awsquery.Client, v *groupView) error {
		since = v.since
		switch {
		case v.machine.ID != "" && leaves(v.machine.State):
			return fmt.Errorf("%w: machine %s of group %s is being ended", power.ErrStopping, v.machine.ID, host.Group)
		case v.machine.ID != "" || v.coming() && v.Desired >= v.needed():
			on = true
			return nil
		case v.needed() > v.Max:
			return fmt.Errorf("%w: group %s allows %d machines", power.ErrNoCapacity, host.Group, v.Max)
		}
		if v.claim != "" { // it is gone
			if err := d.pool.ReleaseSlot(ctx, host.Name, v.claim); err != nil && !errors.Is(err, state.ErrGone) {
				return fmt.Errorf("%w: %w", power.ErrThrottled, err)
			}
		}
		if n := min(v.size()+1, v.Max); v.Desired < n {
			return resize(ctx, api, host, n)
		}
		return nil
	})
	if err != nil || on {
		return err
	}
	err = d.watchSlot(ctx, host, since)
	if errors.Is(err, power.ErrNoCapacity) || errors.Is(err, power.ErrFailed) {
		back := d.change(context.WithoutCancel(ctx), host, func(ctx context.Context, api *awsquery.Client, v *groupView) error {
			return shrink(ctx, api, host, v)
		})
		if back != nil {
			err = errors.Join(err, back)
		}
	}
	return err
}

// shrink takes back the size that nobody wants. It ends no machine.
func shrink(ctx context.Context, api *awsquery.Client, host catalog.Host, v *groupView) error {
	if n := max(v.size(), v.claimed+len(v.free)); v.Desired > n {
		return resize(ctx, api, host, n)
	}
	return nil
}

// watchSlot does for a slot what watch does for a host that is a group.
func (d *Driver) watchSlot(ctx context.Context, host catalog.Host, since time.Time) error {
	api, err := d.client(ctx, host)
	if err != nil {
		return err
	}
	look := func() (*scalingGroup, bool, error) {
		v, err := d.look(ctx, api, host)
		if err != nil {
			return nil, false, err
		}
		there := v.machine.ID != "" || v.coming()
		if !there && v.Desired < v.needed() {
			return nil, false, fmt.Errorf("%w: group %s was made smaller meanwhile", power.ErrStopping, host.Group)
		}
		return v.scalingGroup, there, nil
	}
	return d.await(ctx, api, host, look, func(a activity) bool { return a.StartTime.Before(since) })
}

// sleepSlot ends the slot's machine, and the group's need for one. For a slot that has none, but for which the group is
// larger than its other slots want, it ends one that has no slot.
func (d *Driver) sleepSlot(ctx context.Context, host catalog.Host) error {
	return d.change(ctx, host, func(ctx context.Context, api *awsquery.Client, v *groupView) error {
		id := v.machine.ID
		switch {
		case v.waking: // Redis was restored to a time before the sleep
			return fmt.Errorf("%w: host %s is being woken", power.ErrLeaseLost, host.Name)
		case id != "" && leaves(v.machine.State):
			return nil
		case id == "" && (v.claim != "" || v.Desired <= v.size()): // its machine is gone
			return nil
		case id == "" && len(v.free) == 0:
			return shrink(ctx, api, host, v)
		case id == "":
			var err error
			if id, err = d.oldest(ctx, host, v.free); err != nil {
				return err
			}
		}
		return awserr.Classify(api.Call(ctx, "TerminateInstanceInAutoScalingGroup", url.Values{
			"InstanceId": {id}, "ShouldDecrementDesiredCapacity": {"true"},
		}, nil))
	})
}

// oldest returns the machine that was launched first.
func (d *Driver) oldest(ctx context.Context, host catalog.Host, ids []string) (string, error) {
	if len(ids) == 1 || d.cfg.EC2 == nil {
		return ids[0], nil
	}
	api, err := d.cfg.EC2(ctx, host.Region)
	if err != nil {
		return "", fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	return ec2.Oldest(ctx, api, ids)
}

// stateOfSlot returns the state of the slot's machine. A slot that never had one is starting while the group is larger
// than its other slots want.
func (d *Driver) stateOfSlot(ctx context.Context, host catalog.Host) (power.Power, error) {
	api, err := d.client(ctx, host)
	if err != nil {
		return power.Unknown, err
	}
	v, err := d.look(ctx, api, host)
	switch {
	case err != nil:
		return power.Unknown, err
	case v.machine.State == "InService":
		return power.On, nil
	case v.machine.ID != "" && leaves(v.machine.State):
		return power.Stopping, nil
	case v.machine.ID != "" || v.claim == "" && v.Desired > v.size():
		return power.Starting, nil
	}
	return power.Off, nil
}
