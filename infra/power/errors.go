package power

import (
	"context"
	"errors"
)

// Unfinished reports whether a sleep ended with this error after the driver may have accepted it: the host may be on its
// way down.
func Unfinished(err error) bool {
	return errors.Is(err, ErrStopping) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Errors of drivers. Test with errors.Is; drivers wrap them with what the platform said.
var (
	// ErrNoCapacity: the platform cannot give the host now (no machines, a quota). Another host may do; the same one
	// after a while.
	ErrNoCapacity = errors.New("no capacity")
	// ErrThrottled: too many calls; the same call in some seconds may pass.
	ErrThrottled = errors.New("throttled by the platform")
	// ErrStopping: the host is on its way down and can be woken once it is off.
	ErrStopping = errors.New("host is stopping")
	// ErrStarting: the host is on its way up and can be put to sleep once it is on.
	ErrStarting = errors.New("host is starting")
	// ErrUnknownHost: the platform or the catalogue has no such host. Waiting does not help.
	ErrUnknownHost = errors.New("unknown host")
	// ErrDenied: the caller may not do this (credentials, permissions). Waiting does not help.
	ErrDenied = errors.New("not permitted")
	// ErrFailed: the driver's means ran and failed, such as a command with a bad status or a process that ended at once.
	ErrFailed = errors.New("failed")
	// ErrNoDriver: this program was built or started without the host's driver.
	ErrNoDriver = errors.New("no driver for the host here")
	// ErrClosed: the driver was closed.
	ErrClosed = errors.New("driver is closed")
)
