// Package asg is the power driver for hosts that an Auto Scaling group launches, each from a separate group: Wake
// raises the desired capacity to one, Sleep lowers it to none. AWS manages the group's warm pool.
package asg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/internal/awserr"
)

var _ power.Driver = (*Driver)(nil)

// Config of a Driver. Client is required.
type Config struct {
	// Client returns a client for Auto Scaling in a region; "" means the environment's region. It is called for every
	// operation.
	Client func(ctx context.Context, region string) (*awsquery.Client, error)
	// Poll is the time between two checks; default 3 s.
	Poll time.Duration
}

// watchFor is how long Wake checks that the group gets a machine, since AWS accepts any size and fails later.
const watchFor = 45 * time.Second

// Driver changes the desired capacity of groups. It has nothing to close.
type Driver struct{ cfg Config }

// New creates a driver.
func New(cfg Config) *Driver {
	cfg.Poll = cmp.Or(max(cfg.Poll, 0), 3*time.Second)
	return &Driver{cfg}
}

// Wake makes sure that the group has a machine or is getting one. power.ErrNoCapacity: AWS has none available; the
// group's size is then restored.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	api, g, err := d.group(ctx, host)
	if err != nil {
		return err
	}
	if g.Desired > 0 {
		return nil
	}
	if g.Max < 1 {
		return fmt.Errorf("%w: group %s allows no machine (its maximum is 0)", power.ErrNoCapacity, host.Group)
	}
	began := time.Now().Add(-time.Minute) // AWS's clock may be behind ours
	if err := resize(ctx, api, host, 1); err != nil {
		return err
	}
	err = d.watch(ctx, api, host, began)
	if errors.Is(err, power.ErrNoCapacity) {
		if back := resize(context.WithoutCancel(ctx), api, host, 0); back != nil {
			err = errors.Join(err, back)
		}
	}
	return err
}

// watch waits until the group has a machine, an activity fails for lack of capacity, or watchFor has passed, which
// counts as success.
func (d *Driver) watch(ctx context.Context, api *awsquery.Client, host catalog.Host, since time.Time) error {
	for end := time.Now().Add(watchFor); time.Now().Before(end); {
		g, err := group(ctx, api, host)
		if err != nil {
			return err
		}
		if len(g.Instances) > 0 {
			return nil
		}
		if g.Desired == 0 {
			return fmt.Errorf("%w: group %s was put to sleep meanwhile", power.ErrStopping, host.Group)
		}
		var out struct {
			Activities []struct {
				StatusCode, StatusMessage string
				StartTime                 time.Time
			} `xml:"DescribeScalingActivitiesResult>Activities>member"`
		}
		params := url.Values{"AutoScalingGroupName": {host.Group}, "MaxRecords": {"5"}}
		if err := api.Call(ctx, "DescribeScalingActivities", params, &out); err != nil {
			return awserr.Classify(err)
		}
		for _, a := range out.Activities {
			if a.StatusCode == "Failed" && !a.StartTime.Before(since) && awserr.LacksCapacity(a.StatusMessage) {
				return fmt.Errorf("%w: group %s: %s", power.ErrNoCapacity, host.Group, a.StatusMessage)
			}
		}
		select {
		case <-time.After(d.cfg.Poll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Sleep lowers the group's size to none. It refuses a group of several machines, since it cannot name the idle one.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	api, g, err := d.group(ctx, host)
	if err != nil {
		return err
	}
	switch n := g.Desired; {
	case n == 0:
		return nil
	case n > 1:
		return fmt.Errorf("%w: group %s has %d machines, not one", power.ErrFailed, host.Group, n)
	}
	return resize(ctx, api, host, 0)
}

// State returns the state of the group's machine.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	_, g, err := d.group(ctx, host)
	if err != nil {
		return power.Unknown, err
	}
	p := power.Off
	if g.Desired > 0 {
		p = power.Starting
	}
	for _, i := range g.Instances {
		switch {
		case i.State == "InService":
			return power.On, nil
		case !strings.HasPrefix(i.State, "Terminat") && !strings.HasPrefix(i.State, "Detach"):
			p = power.Starting
		case p == power.Off:
			p = power.Stopping
		}
	}
	return p, nil
}

// scalingGroup is a group as DescribeAutoScalingGroups returns it.
type scalingGroup struct {
	Desired   int `xml:"DesiredCapacity"`
	Max       int `xml:"MaxSize"`
	Instances []struct {
		State string `xml:"LifecycleState"`
	} `xml:"Instances>member"`
}

// group creates a client for the host's region and describes its group.
func (d *Driver) group(ctx context.Context, host catalog.Host) (*awsquery.Client, *scalingGroup, error) {
	api, err := d.cfg.Client(ctx, host.Region)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	g, err := group(ctx, api, host)
	return api, g, err
}

func group(ctx context.Context, api *awsquery.Client, host catalog.Host) (*scalingGroup, error) {
	var out struct {
		Groups []scalingGroup `xml:"DescribeAutoScalingGroupsResult>AutoScalingGroups>member"`
	}
	params := url.Values{"AutoScalingGroupNames.member.1": {host.Group}}
	if err := api.Call(ctx, "DescribeAutoScalingGroups", params, &out); err != nil {
		return nil, awserr.Classify(err)
	}
	if len(out.Groups) == 0 {
		return nil, fmt.Errorf("%w: group %s does not exist", power.ErrUnknownHost, host.Group)
	}
	return &out.Groups[0], nil
}

// resize sets the desired capacity immediately, ignoring the group's cooldown.
func resize(ctx context.Context, api *awsquery.Client, host catalog.Host, n int) error {
	params := url.Values{"AutoScalingGroupName": {host.Group}, "DesiredCapacity": {strconv.Itoa(n)}, "HonorCooldown": {"false"}}
	return awserr.Classify(api.Call(ctx, "SetDesiredCapacity", params, nil))
}
