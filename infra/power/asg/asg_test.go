package asg_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/smithy-go"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/asg"
	"reveille/infra/power/waketest"
)

var host = catalog.Host{Name: "gpu", Driver: catalog.DriverASG, Group: "reveille-gpu", Max: 4}

// cloud is one group as the service stores it; each read advances its time.
type cloud struct {
	mu       sync.Mutex
	desired  int32
	max      int32
	members  []types.Instance
	launched int
	empty    string // why AWS has no machine, "" if it has one
	failed   []types.Activity
	refuse   error
	cooldown bool // a call honoured the cooldown
}

func (c *cloud) DescribeAutoScalingGroups(_ context.Context, in *autoscaling.DescribeAutoScalingGroupsInput, _ ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	if in.AutoScalingGroupNames[0] != host.Group {
		return &autoscaling.DescribeAutoScalingGroupsOutput{}, nil
	}
	out := &autoscaling.DescribeAutoScalingGroupsOutput{AutoScalingGroups: []types.AutoScalingGroup{{
		DesiredCapacity: aws.Int32(c.desired), MaxSize: aws.Int32(c.max), Instances: append([]types.Instance(nil), c.members...),
	}}}
	c.passLocked()
	return out, nil
}

// passLocked advances every machine by one step and launches missing ones.
func (c *cloud) passLocked() {
	var left []types.Instance
	alive := int32(0)
	for _, m := range c.members {
		switch m.LifecycleState {
		case types.LifecycleStatePending:
			m.LifecycleState = types.LifecycleStateInService
		case types.LifecycleStateTerminating:
			continue
		}
		alive++
		left = append(left, m)
	}
	for ; alive < c.desired; alive++ {
		if c.empty != "" {
			c.failed = append(c.failed, types.Activity{StatusCode: types.ScalingActivityStatusCodeFailed, StatusMessage: &c.empty, StartTime: aws.Time(time.Now())})
			break
		}
		c.launched++
		left = append(left, types.Instance{InstanceId: aws.String(fmt.Sprintf("i-%017d", c.launched)), LifecycleState: types.LifecycleStatePending})
	}
	c.members = left
}

func (c *cloud) DescribeScalingActivities(context.Context, *autoscaling.DescribeScalingActivitiesInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeScalingActivitiesOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &autoscaling.DescribeScalingActivitiesOutput{Activities: c.failed}, nil
}

func (c *cloud) SetDesiredCapacity(_ context.Context, in *autoscaling.SetDesiredCapacityInput, _ ...func(*autoscaling.Options)) (*autoscaling.SetDesiredCapacityOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	c.cooldown = c.cooldown || in.HonorCooldown == nil || *in.HonorCooldown
	c.desired = *in.DesiredCapacity
	for i := range c.members {
		if int32(i) >= c.desired {
			c.members[i].LifecycleState = types.LifecycleStateTerminating
		}
	}
	return &autoscaling.SetDesiredCapacityOutput{}, nil
}

func (c *cloud) TerminateInstanceInAutoScalingGroup(_ context.Context, in *autoscaling.TerminateInstanceInAutoScalingGroupInput, _ ...func(*autoscaling.Options)) (*autoscaling.TerminateInstanceInAutoScalingGroupOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, m := range c.members {
		if *m.InstanceId == *in.InstanceId {
			c.members[i].LifecycleState = types.LifecycleStateTerminating
			if *in.ShouldDecrementDesiredCapacity {
				c.desired--
			}
		}
	}
	return &autoscaling.TerminateInstanceInAutoScalingGroupOutput{}, nil
}

func driver(c *cloud) *asg.Driver {
	return asg.New(asg.Config{Poll: time.Millisecond, Client: func(context.Context, string) (asg.API, error) { return c, nil }})
}

func TestContract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		c := &cloud{max: 4}
		t.Cleanup(func() {
			if c.cooldown {
				t.Error("a resize waited for the group's cooldown")
			}
		})
		return waketest.Fixture{
			Driver: driver(c), Host: host, Strange: &catalog.Host{Name: "x", Group: "no such group"},
			Starts: func() int {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.launched
			},
		}
	})
}

func TestNoMachineToGive(t *testing.T) {
	for _, message := range []string{
		"We currently do not have sufficient g5.xlarge capacity in the Availability Zone you requested (us-east-1a).",
		"Could not launch On-Demand Instances. InsufficientInstanceCapacity - There is no capacity",
		"You have requested more vCPU capacity than your current vCPU limit of 0 allows",
	} {
		c := &cloud{max: 1, empty: message}
		err := driver(c).Wake(t.Context(), host)
		if !errors.Is(err, power.ErrNoCapacity) || !strings.Contains(err.Error(), message) {
			t.Error("wake:", err)
		}
		if c.desired != 0 {
			t.Error("the group still tries to get", c.desired)
		}
	}
	if err := driver(&cloud{}).Wake(t.Context(), host); !errors.Is(err, power.ErrNoCapacity) {
		t.Error("wake of a group that allows no machine:", err)
	}
}

// TestTheIdleMemberGoes puts one of three machines to sleep. That machine ends and is not replaced.
func TestTheIdleMemberGoes(t *testing.T) {
	c := &cloud{max: 4, desired: 3}
	c.passLocked()
	d := driver(c)
	idle := host
	idle.Name, idle.Instance = "gpu.i-00000000000000002", "i-00000000000000002"
	if err := d.Sleep(t.Context(), idle); err != nil {
		t.Fatal(err)
	}
	if err := d.Sleep(t.Context(), idle); err != nil {
		t.Fatal("again:", err)
	}
	if p, err := d.State(t.Context(), idle); p != power.Off || err != nil {
		t.Error("state:", p, err)
	}
	if c.desired != 2 || len(c.members) != 2 || c.launched != 3 {
		t.Error("desired", c.desired, "members", len(c.members), "launched", c.launched)
	}
	if err := d.Sleep(t.Context(), host); !errors.Is(err, power.ErrFailed) {
		t.Error("a sleep that does not name the idle one:", err)
	}
}

func TestErrors(t *testing.T) {
	for code, want := range map[string]error{
		"Throttling": power.ErrThrottled, "ResourceContention": power.ErrThrottled, "ScalingActivityInProgress": power.ErrThrottled,
		"AccessDenied": power.ErrDenied, "ValidationError": power.ErrFailed,
	} {
		c := &cloud{max: 1, refuse: &smithy.GenericAPIError{Code: code, Message: "recorded"}}
		d := driver(c)
		if err := d.Wake(t.Context(), host); !errors.Is(err, want) {
			t.Error(code, "wake:", err)
		}
		if err := d.Sleep(t.Context(), host); !errors.Is(err, want) {
			t.Error(code, "sleep:", err)
		}
		if _, err := d.State(t.Context(), host); !errors.Is(err, want) {
			t.Error(code, "state:", err)
		}
	}
}
