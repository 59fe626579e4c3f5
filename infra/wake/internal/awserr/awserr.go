// Package awserr tells errors of AWS apart in the words of package wake.
package awserr

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/smithy-go"

	"reveille/infra/wake"
)

// codes are the error codes of EC2 and Auto Scaling with a meaning of their own.
var codes = map[string]error{
	"InsufficientInstanceCapacity":         wake.ErrNoCapacity,
	"InsufficientHostCapacity":             wake.ErrNoCapacity,
	"InsufficientReservedInstanceCapacity": wake.ErrNoCapacity,
	"InsufficientCapacity":                 wake.ErrNoCapacity,
	"InstanceLimitExceeded":                wake.ErrNoCapacity,
	"VcpuLimitExceeded":                    wake.ErrNoCapacity,
	"MaxSpotInstanceCountExceeded":         wake.ErrNoCapacity,
	"SpotMaxPriceTooLow":                   wake.ErrNoCapacity,
	"HostLimitExceeded":                    wake.ErrNoCapacity,

	"RequestLimitExceeded":      wake.ErrThrottled,
	"Throttling":                wake.ErrThrottled,
	"ThrottlingException":       wake.ErrThrottled,
	"RequestThrottled":          wake.ErrThrottled,
	"TooManyRequestsException":  wake.ErrThrottled,
	"EC2ThrottledException":     wake.ErrThrottled,
	"ResourceContention":        wake.ErrThrottled,
	"ScalingActivityInProgress": wake.ErrThrottled,
	"InternalError":             wake.ErrThrottled,
	"InternalFailure":           wake.ErrThrottled,
	"ServiceUnavailable":        wake.ErrThrottled,
	"Unavailable":               wake.ErrThrottled,

	"InvalidInstanceID.NotFound":  wake.ErrUnknownHost,
	"InvalidInstanceID.Malformed": wake.ErrUnknownHost,

	"UnauthorizedOperation":       wake.ErrDenied,
	"AccessDenied":                wake.ErrDenied,
	"AccessDeniedException":       wake.ErrDenied,
	"AuthFailure":                 wake.ErrDenied,
	"ExpiredToken":                wake.ErrDenied,
	"InvalidClientTokenId":        wake.ErrDenied,
	"OptInRequired":               wake.ErrDenied,
	"SignatureDoesNotMatch":       wake.ErrDenied,
	"UnrecognizedClientException": wake.ErrDenied,
}

// Classify wraps an error of AWS with the error of package wake that it is; any other is wake.ErrFailed. nil stays nil.
func Classify(op string, err error) error {
	if err == nil {
		return nil
	}
	kind := codes[Code(err)]
	if kind == nil {
		kind = wake.ErrFailed
	}
	return fmt.Errorf("%s: %w: %w", op, kind, err)
}

// Code is AWS's code of an error, "" for one that did not come from AWS.
func Code(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}

// LacksCapacity reports whether the words of a failed scaling activity say that AWS has no machine to give.
func LacksCapacity(message string) bool {
	m := strings.ToLower(message)
	for _, words := range []string{"insufficient capacity", "insufficientinstancecapacity", "do not have sufficient", "vcpu capacity", "limit exceeded", "spot capacity", "no spot capacity"} {
		if strings.Contains(m, words) {
			return true
		}
	}
	return false
}
