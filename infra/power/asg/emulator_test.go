package asg_test

import (
	"context"
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	astypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/asg"
	"reveille/testenv/aws"
	"reveille/testenv/waketest"
)

// region is the driver with an emulator.
type region struct {
	t      *testing.T
	cloud  *aws.Emulator
	groups *autoscaling.Client
	hosts  *awsec2.Client
	driver *asg.Driver
}

func emulator(t *testing.T) *region {
	t.Helper()
	cloud := aws.Start(t, 10*time.Millisecond)
	r := &region{t: t, cloud: cloud, groups: autoscaling.NewFromConfig(cloud.Config()), hosts: awsec2.NewFromConfig(cloud.Config())}
	r.driver = asg.New(asg.Config{Poll: 10 * time.Millisecond, Client: func(context.Context, string) (*awsquery.Client, error) {
		return awsquery.AutoScaling(cloud.Config()), nil
	}})
	return r
}

// group creates an empty group and returns its host: of one instance type with a warm pool, or of several.
func (r *region) group(name string, most int32, types ...string) catalog.Host {
	r.t.Helper()
	r.cloud.Group(name, most, types...)
	host := catalog.Host{Name: name, Driver: catalog.DriverASG, Group: name, Max: int(most)}
	if len(types) > 0 {
		return host
	}
	if _, err := r.groups.PutWarmPool(r.t.Context(), &autoscaling.PutWarmPoolInput{AutoScalingGroupName: &name, PoolState: astypes.WarmPoolStateStopped}); err != nil {
		r.t.Fatal(err)
	}
	return host
}

// look describes a group.
func (r *region) look(name string) astypes.AutoScalingGroup {
	r.t.Helper()
	out, err := r.groups.DescribeAutoScalingGroups(context.WithoutCancel(r.t.Context()), &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{name}})
	if err != nil || len(out.AutoScalingGroups) != 1 {
		r.t.Fatal(out, err)
	}
	return out.AutoScalingGroups[0]
}

// launched returns how many machines a group has ever had.
func (r *region) launched(name string) int {
	r.t.Helper()
	tag := "tag:aws:autoscaling:groupName"
	out, err := r.hosts.DescribeInstances(r.t.Context(), &awsec2.DescribeInstancesInput{Filters: []ec2types.Filter{{Name: &tag, Values: []string{name}}}})
	if err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for _, s := range out.Reservations {
		n += len(s.Instances)
	}
	return n
}

func TestOnTheEmulator(t *testing.T) {
	r := emulator(t)
	for name, part := range map[string]func(*region, *testing.T){
		"contract": (*region).contract, "refusals": (*region).refusals, "contract of a slot": contractOfSlot(), "group": (*region).groupOfFour,
		"contract of a slot of a mixed group": contractOfSlot("g6.xlarge", "g5.xlarge"),
	} {
		t.Run(name, func(t *testing.T) {
			own := *r
			own.t = t
			part(&own, t)
		})
	}
}

func (r *region) contract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		name := path.Base(t.Name())
		return waketest.Fixture{
			Driver: r.driver, Host: r.group(name, 1), Strange: &catalog.Host{Name: "x", Group: "no such group"},
			Starts: func() int { return r.launched(name) },
		}
	})
}

func (r *region) refusals(t *testing.T) {
	ctx := t.Context()
	h := r.group("gpu", 3)
	expect := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}

	r.cloud.SoldOut(true)
	expect("wake without capacity", r.driver.Wake(ctx, h), power.ErrNoCapacity)
	if n := *r.look("gpu").DesiredCapacity; n != 0 {
		t.Errorf("the group still tries to get %d", n)
	}
	r.cloud.FailLaunches("The image id '[ami-0]' does not exist.")
	err := r.driver.Wake(ctx, h)
	expect("a launch that fails for another reason", err, power.ErrFailed)
	if n := *r.look("gpu").DesiredCapacity; n != 0 || err == nil || !strings.Contains(err.Error(), "ami-0") {
		t.Errorf("size %d, %v", n, err)
	}
	one, zero := int32(1), int32(0)
	size := func(n *int32) {
		t.Helper()
		if _, err := r.groups.SetDesiredCapacity(ctx, &autoscaling.SetDesiredCapacityInput{AutoScalingGroupName: &h.Group, DesiredCapacity: n}); err != nil {
			t.Fatal(err)
		}
	}
	size(&one)
	expect("a group of size one already that gets no machine", r.driver.Wake(ctx, h), power.ErrFailed)
	r.cloud.SoldOutIn(aws.Region + "a")
	expect("a zone without capacity, just after these failures", r.driver.Wake(ctx, h), nil)
	if n := len(r.look("gpu").Instances); n != 1 {
		t.Errorf("%d machines after a wake", n)
	}
	size(&zero)
	r.cloud.SoldOut(false)

	for action, code := range map[string]string{"DescribeAutoScalingGroups": "Throttling", "SetDesiredCapacity": "ScalingActivityInProgress"} {
		r.cloud.Refuse(action, code, 1)
		expect("wake, throttled", r.driver.Wake(ctx, h), power.ErrThrottled)
	}
	expect("wake", r.driver.Wake(ctx, h), nil)
	expect("wake of one that is on", r.driver.Wake(ctx, h), nil)
	if n := r.launched("gpu"); n != 2 {
		t.Errorf("%d machines launched, want 2", n)
	}

	three := int32(3)
	if _, err := r.groups.SetDesiredCapacity(ctx, &autoscaling.SetDesiredCapacityInput{AutoScalingGroupName: &h.Group, DesiredCapacity: &three}); err != nil {
		t.Fatal(err)
	}
	expect("sleep of three machines", r.driver.Sleep(ctx, h), power.ErrFailed)
}
