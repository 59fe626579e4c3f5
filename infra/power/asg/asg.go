// Package asg is the power driver for hosts that an Auto Scaling group launches: Wake raises the desired capacity by
// one, Sleep lowers it by one. AWS manages the group's warm pool.
package asg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/internal/awserr"
)

var _ power.Driver = (*Driver)(nil)

// API lists the AWS calls of the driver; *autoscaling.Client implements it.
type API interface {
	DescribeAutoScalingGroups(context.Context, *autoscaling.DescribeAutoScalingGroupsInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error)
	DescribeScalingActivities(context.Context, *autoscaling.DescribeScalingActivitiesInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeScalingActivitiesOutput, error)
	SetDesiredCapacity(context.Context, *autoscaling.SetDesiredCapacityInput, ...func(*autoscaling.Options)) (*autoscaling.SetDesiredCapacityOutput, error)
	TerminateInstanceInAutoScalingGroup(context.Context, *autoscaling.TerminateInstanceInAutoScalingGroupInput, ...func(*autoscaling.Options)) (*autoscaling.TerminateInstanceInAutoScalingGroupOutput, error)
}

// Config of a Driver. Client is required.
type Config struct {
	// Client returns the API of a region; "" means the environment's region. It is called for every operation.
	Client func(ctx context.Context, region string) (API, error)
	// Poll is the time between two checks; default 3 s.
	Poll time.Duration
}

// watchFor is how long Wake checks that the group really gets a machine, since AWS accepts any size and fails later.
const watchFor = 45 * time.Second

// Driver changes the desired capacity of groups. It has nothing to close.
//
// A catalogue entry stands for its group's first machine. An entry with an Instance is that member of the group, and
// Sleep ends exactly that machine.
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
	if aws.ToInt32(g.DesiredCapacity) > 0 {
		return nil
	}
	if aws.ToInt32(g.MaxSize) < 1 {
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

// watch waits until the group has a machine, one of its activities fails, or watchFor has passed, which counts as
// success.
func (d *Driver) watch(ctx context.Context, api API, host catalog.Host, since time.Time) error {
	for end := time.Now().Add(watchFor); time.Now().Before(end); {
		g, err := group(ctx, api, host)
		if err != nil {
			return err
		}
		if len(g.Instances) > 0 {
			return nil
		}
		if aws.ToInt32(g.DesiredCapacity) == 0 {
			return fmt.Errorf("%w: group %s was put to sleep meanwhile", power.ErrStopping, host.Group)
		}
		out, err := api.DescribeScalingActivities(ctx, &autoscaling.DescribeScalingActivitiesInput{
			AutoScalingGroupName: &host.Group, MaxRecords: aws.Int32(5),
		})
		if err != nil {
			return awserr.Classify("DescribeScalingActivities", err)
		}
		for _, a := range out.Activities {
			if a.StatusCode != types.ScalingActivityStatusCodeFailed || aws.ToTime(a.StartTime).Before(since) {
				continue
			}
			if message := aws.ToString(a.StatusMessage); awserr.LacksCapacity(message) {
				return fmt.Errorf("%w: group %s: %s", power.ErrNoCapacity, host.Group, message)
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

// Sleep ends the host's machine and lowers the group's size with it, so that it is not replaced.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	api, g, err := d.group(ctx, host)
	if err != nil {
		return err
	}
	if host.Instance == "" {
		switch n := aws.ToInt32(g.DesiredCapacity); {
		case n == 0:
			return nil
		case n > 1:
			return fmt.Errorf("%w: group %s has %d machines but the idle one was not named", power.ErrFailed, host.Group, n)
		}
		return resize(ctx, api, host, 0)
	}
	if !has(g, host.Instance) {
		return nil
	}
	_, err = api.TerminateInstanceInAutoScalingGroup(ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
		InstanceId: &host.Instance, ShouldDecrementDesiredCapacity: aws.Bool(true),
	})
	return awserr.Classify("TerminateInstanceInAutoScalingGroup", err)
}

// has reports whether a machine is in the group and not terminating.
func has(g *types.AutoScalingGroup, instance string) bool {
	for _, i := range g.Instances {
		if aws.ToString(i.InstanceId) == instance {
			return !leaving(i)
		}
	}
	return false
}

func leaving(i types.Instance) bool {
	return strings.HasPrefix(string(i.LifecycleState), "Terminat") || strings.HasPrefix(string(i.LifecycleState), "Detach")
}

// State returns the state of the host's machine, or of the group's first machine.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	_, g, err := d.group(ctx, host)
	if err != nil {
		return power.Unknown, err
	}
	p := power.Off
	if aws.ToInt32(g.DesiredCapacity) > 0 && host.Instance == "" {
		p = power.Starting
	}
	for _, i := range g.Instances {
		switch {
		case host.Instance != "" && aws.ToString(i.InstanceId) != host.Instance:
		case i.LifecycleState == types.LifecycleStateInService:
			return power.On, nil
		case !leaving(i):
			p = power.Starting
		case p == power.Off:
			p = power.Stopping
		}
	}
	return p, nil
}

// group creates a client for the host's region and describes its group.
func (d *Driver) group(ctx context.Context, host catalog.Host) (API, *types.AutoScalingGroup, error) {
	api, err := d.cfg.Client(ctx, host.Region)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	g, err := group(ctx, api, host)
	return api, g, err
}

func group(ctx context.Context, api API, host catalog.Host) (*types.AutoScalingGroup, error) {
	out, err := api.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{host.Group}})
	if err != nil {
		return nil, awserr.Classify("DescribeAutoScalingGroups", err)
	}
	if len(out.AutoScalingGroups) == 0 {
		return nil, fmt.Errorf("%w: group %s does not exist", power.ErrUnknownHost, host.Group)
	}
	return &out.AutoScalingGroups[0], nil
}

// resize sets the desired capacity at once, ignoring the group's cooldown.
func resize(ctx context.Context, api API, host catalog.Host, n int32) error {
	_, err := api.SetDesiredCapacity(ctx, &autoscaling.SetDesiredCapacityInput{
		AutoScalingGroupName: &host.Group, DesiredCapacity: &n, HonorCooldown: aws.Bool(false),
	})
	return awserr.Classify("SetDesiredCapacity", err)
}
