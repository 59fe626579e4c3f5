// Package awserr maps AWS errors to those of package power.
package awserr

import (
	"errors"
	"fmt"
	"strings"

	"reveille/infra/awsquery"
	"reveille/infra/power"
)

// codes maps error codes of EC2 and Auto Scaling to the errors of package power that they mean.
var codes = map[string]error{
	"InsufficientInstanceCapacity":         power.ErrNoCapacity,
	"InsufficientHostCapacity":             power.ErrNoCapacity,
	"InsufficientReservedInstanceCapacity": power.ErrNoCapacity,
	"InsufficientCapacity":                 power.ErrNoCapacity,
	"InstanceLimitExceeded":                power.ErrNoCapacity,
	"VcpuLimitExceeded":                    power.ErrNoCapacity,
	"MaxSpotInstanceCountExceeded":         power.ErrNoCapacity,
	"SpotMaxPriceTooLow":                   power.ErrNoCapacity,
	"HostLimitExceeded":                    power.ErrNoCapacity,

	"RequestLimitExceeded":      power.ErrThrottled,
	"Throttling":                power.ErrThrottled,
	"ThrottlingException":       power.ErrThrottled,
	"RequestThrottled":          power.ErrThrottled,
	"TooManyRequestsException":  power.ErrThrottled,
	"EC2ThrottledException":     power.ErrThrottled,
	"ResourceContention":        power.ErrThrottled,
	"ScalingActivityInProgress": power.ErrThrottled,
	"InternalError":             power.ErrThrottled,
	"InternalFailure":           power.ErrThrottled,
	"ServiceUnavailable":        power.ErrThrottled,
	"Unavailable":               power.ErrThrottled,

	"InvalidInstanceID.NotFound":  power.ErrUnknownHost,
	"InvalidInstanceID.Malformed": power.ErrUnknownHost,

	"UnauthorizedOperation":       power.ErrDenied,
	"AccessDenied":                power.ErrDenied,
	"AccessDeniedException":       power.ErrDenied,
	"AuthFailure":                 power.ErrDenied,
	"ExpiredToken":                power.ErrDenied,
	"InvalidClientTokenId":        power.ErrDenied,
	"OptInRequired":               power.ErrDenied,
	"SignatureDoesNotMatch":       power.ErrDenied,
	"UnrecognizedClientException": power.ErrDenied,
}

// Classify wraps an AWS error with the matching error of package power, power.ErrFailed if none matches. It returns nil
// for nil.
func Classify(err error) error {
	if err == nil {
		return nil
	}
	kind := codes[Code(err)]
	if kind == nil {
		kind = power.ErrFailed
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// Code returns the AWS code of an error, or "" if the error did not come from AWS.
func Code(err error) string {
	if e, ok := errors.AsType[*awsquery.Error](err); ok {
		return e.Code
	}
	return ""
}

// LacksCapacity reports whether the message of a failed scaling activity, or the reason of an instance's state, says
// that AWS has no machine available, or not in that zone.
func LacksCapacity(message string) bool {
	m := strings.ToLower(message)
	for _, words := range []string{"insufficient capacity", "insufficientinstancecapacity", "do not have sufficient", "vcpu capacity", "limit exceeded", "spot capacity",
		"unfulfillablecapacity", "max spot instance count exceeded", "not supported in your requested availability zone"} {
		if strings.Contains(m, words) {
			return true
		}
	}
	return false
}
