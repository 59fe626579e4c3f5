package awserr

import (
	"errors"
	"fmt"
	"testing"

	"reveille/infra/awsquery"
	"reveille/infra/power"
)

func TestClassify(t *testing.T) {
	for code, want := range map[string]error{
		"InsufficientInstanceCapacity": power.ErrNoCapacity, "VcpuLimitExceeded": power.ErrNoCapacity, "InstanceLimitExceeded": power.ErrNoCapacity,
		"RequestLimitExceeded": power.ErrThrottled, "InternalError": power.ErrThrottled, "Throttling": power.ErrThrottled,
		"ScalingActivityInProgress": power.ErrThrottled, "UnauthorizedOperation": power.ErrDenied, "AccessDenied": power.ErrDenied,
		"InvalidInstanceID.Malformed": power.ErrUnknownHost, "SomethingNew": power.ErrFailed,
	} {
		err := fmt.Errorf("StartInstances: %w", &awsquery.Error{Code: code, Message: "recorded"})
		if got := Classify(err); !errors.Is(got, want) || !errors.Is(got, err) {
			t.Errorf("%s: %v, want %v", code, got, want)
		}
	}
	if err := Classify(nil); err != nil {
		t.Error(err)
	}
	for _, message := range []string{
		"We currently do not have sufficient g5.xlarge capacity in the Availability Zone you requested (us-east-1a).",
		"Could not launch On-Demand Instances. InsufficientInstanceCapacity - There is no capacity",
		"Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration. Please adjust your request and try again. Launching EC2 instance failed.",
		"Could not launch Spot Instances. InvalidFleetConfiguration - Your requested instance type (g6.xlarge) is not supported in your requested Availability Zone (us-east-1e). Launching EC2 instance failed.",
		"Max spot instance count exceeded. Launching EC2 instance failed.",
		"You have requested more vCPU capacity than your current vCPU limit of 0 allows",
	} {
		if !LacksCapacity(message) {
			t.Error(message)
		}
	}
}
