// Package asg is the power driver for hosts that an Auto Scaling group launches: Wake raises the desired capacity,
// Sleep lowers it. A group is one host, of one machine or none, or it has several hosts (catalog.Host.Of): see
// group.go. AWS manages the group's warm pool.
//
// AWS accepts any size and fails later, so Wake reads the group's activities. LaunchInstances would report failures
// immediately, but it bypasses the warm pool and requires that its caller may create fleets of any instances
// (ec2:CreateFleet).
package asg

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
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
	// EC2 returns a client for EC2 likewise, to learn which of several machines without a slot was launched first; nil:
	// any of them is ended first.
	EC2 func(ctx context.Context, region string) (*awsquery.Client, error)
	// Poll is the time between two checks; default 3 s.
	Poll time.Duration
}

// watchFor is how long Wake checks that the group gets a machine.
const watchFor = 45 * time.Second

// recentFailure is the maximum age of earlier failures that count if the group's size is already one but it has no
// machine.
const recentFailure = 5 * time.Minute

// Driver changes the desired capacity of groups. It has nothing to close.
type Driver struct {
	cfg  Config
	pool power.Pool // nil: no groups of several hosts
}

// New creates a driver.
func New(cfg Config) *Driver {
	cfg.Poll = cmp.Or(max(cfg.Poll, 0), 3*time.Second)
	return &Driver{cfg: cfg}
}

// Wake makes sure that the group has a machine or is getting one. power.ErrNoCapacity: AWS has none available in any of
// the group's zones; power.ErrFailed: it could not launch one, with AWS's words. The group's size is then set to none,
// also if it was one before.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	if host.Of != "" {
		return d.wakeSlot(ctx, host)
	}
	api, g, err := d.group(ctx, host)
	if err != nil {
		return err
	}
	if g.Desired > 0 && g.hasMachine() {
		return nil
	}
	if g.Max < 1 {
		return fmt.Errorf("%w: group %s allows no machine (its maximum is 0)", power.ErrNoCapacity, host.Group)
	}
	past, err := activities(ctx, api, host)
	if err != nil {
		return err
	}
	earlier := map[string]bool{} // activities of earlier attempts
	if g.Desired > 0 {
		past = slices.DeleteFunc(past, func(a activity) bool { return time.Since(a.StartTime) < recentFailure })
	} else if err := resize(ctx, api, host, 1); err != nil {
		return err
	}
	for _, a := range past {
		earlier[a.ActivityID] = true
	}
	err = d.watch(ctx, api, host, earlier)
	if errors.Is(err, power.ErrNoCapacity) || errors.Is(err, power.ErrFailed) {
		if back := resize(context.WithoutCancel(ctx), api, host, 0); back != nil {
			err = errors.Join(err, back)
		}
	}
	return err
}

// watch waits until the group has a machine.
func (d *Driver) watch(ctx context.Context, api *awsquery.Client, host catalog.Host, earlier map[string]bool) error {
	look := func() (*scalingGroup, bool, error) {
		g, err := group(ctx, api, host)
		if err == nil && !g.hasMachine() && g.Desired == 0 {
			err = fmt.Errorf("%w: group %s was put to sleep meanwhile", power.ErrStopping, host.Group)
		}
		return g, err == nil && g.hasMachine(), err
	}
	return d.await(ctx, api, host, look, func(a activity) bool { return earlier[a.ActivityID] })
}

// await waits until look says that there is a machine, AWS has failed to launch one in all of its zones or for another
// reason than capacity, or watchFor has passed: that counts as success, unless a zone has failed and nothing is in
// progress. Activities that are earlier than the request for the machine do not count.
func (d *Driver) await(ctx context.Context, api *awsquery.Client, host catalog.Host, look func() (g *scalingGroup, there bool, err error), earlier func(activity) bool) error {
	for end := time.Now().Add(watchFor); ; {
		g, there, err := look()
		if err != nil || there {
			return err
		}
		list, err := activities(ctx, api, host)
		if err != nil {
			return err
		}
		last := time.Now().After(end)
		if failure, final := judge(g, host, slices.DeleteFunc(list, earlier)); failure != nil && (final || last) {
			return failure
		}
		if last {
			return nil
		}
		select {
		case <-time.After(d.cfg.Poll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// judge returns why the group gets no machine, by its activities since it was asked for one, and whether that is final:
// no zone is left to try. It returns nil while it is being launched.
func judge(g *scalingGroup, host catalog.Host, list []activity) (failure error, final bool) {
	failedZones, inProgress := map[string]bool{}, false
	for _, a := range slices.Backward(list) { // the oldest first: the last failure is reported
		switch {
		case a.StatusCode == "Successful":
		case a.StatusCode != "Failed" && a.StatusCode != "Cancelled":
			inProgress = true
		case awserr.LacksCapacity(a.StatusMessage):
			failedZones[a.zone()] = true
			failure = fmt.Errorf("%w: group %s: %s", power.ErrNoCapacity, host.Group, a.StatusMessage)
		default:
			return fmt.Errorf("%w: group %s: %s", power.ErrFailed, host.Group, a.StatusMessage), true
		}
	}
	if inProgress {
		return nil, false
	}
	return failure, !slices.ContainsFunc(g.Zones, func(zone string) bool { return !failedZones[zone] })
}

// activity is one attempt of a group to launch or to end a machine.
type activity struct {
	ActivityID    string `xml:"ActivityId"`
	StatusCode    string
	StatusMessage string
	StartTime     time.Time
	Details       string // JSON
}

// zone is the zone of a launch, "" if it is not known.
func (a activity) zone() string {
	var details struct {
		Zone string `json:"Availability Zone"`
	}
	_ = json.Unmarshal([]byte(a.Details), &details)
	return details.Zone
}

// activities returns the group's last activities, the newest first.
func activities(ctx context.Context, api *awsquery.Client, host catalog.Host) ([]activity, error) {
	var out struct {
		Activities []activity `xml:"DescribeScalingActivitiesResult>Activities>member"`
	}
	params := url.Values{"AutoScalingGroupName": {host.Group}, "MaxRecords": {"20"}}
	if err := api.Call(ctx, "DescribeScalingActivities", params, &out); err != nil {
		return nil, awserr.Classify(err)
	}
	return out.Activities, nil
}

// Sleep lowers the group's size to none. It refuses a group of several machines, since it cannot name the idle one.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	if host.Of != "" {
		return d.sleepSlot(ctx, host)
	}
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
	if host.Of != "" {
		return d.stateOfSlot(ctx, host)
	}
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
		case !leaves(i.State):
			p = power.Starting
		case p == power.Off:
			p = power.Stopping
		}
	}
	return p, nil
}

// scalingGroup is a group as DescribeAutoScalingGroups returns it.
type scalingGroup struct {
	Desired   int      `xml:"DesiredCapacity"`
	Max       int      `xml:"MaxSize"`
	Zones     []string `xml:"AvailabilityZones>member"`
	Instances []member `xml:"Instances>member"`
}

// member is a machine of a group.
type member struct {
	ID    string `xml:"InstanceId"`
	State string `xml:"LifecycleState"`
}

// hasMachine reports whether the group has a machine that is not about to go.
func (g *scalingGroup) hasMachine() bool {
	for _, i := range g.Instances {
		if !leaves(i.State) {
			return true
		}
	}
	return false
}

func leaves(lifecycle string) bool {
	return strings.HasPrefix(lifecycle, "Terminat") || strings.HasPrefix(lifecycle, "Detach")
}

// client creates a client for the host's region.
func (d *Driver) client(ctx context.Context, host catalog.Host) (*awsquery.Client, error) {
	if host.Of != "" && d.pool == nil {
		return nil, fmt.Errorf("%w: host %s is a slot of a group, whose machines only a pool knows", power.ErrNoDriver, host.Name)
	}
	api, err := d.cfg.Client(ctx, host.Region)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	return api, nil
}

// group creates a client and describes the host's group.
func (d *Driver) group(ctx context.Context, host catalog.Host) (*awsquery.Client, *scalingGroup, error) {
	api, err := d.client(ctx, host)
	if err != nil {
		return nil, nil, err
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
