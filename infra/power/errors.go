package power

import (
	"context"
	"errors"
)

// Unfinished reports whether this error leaves a sleep undecided: the driver may have accepted it, and the host may be
// shutting down.
func Unfinished(err error) bool {
	return errors.Is(err, ErrStopping) || errors.Is(err, ErrLeaseLost) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Errors of drivers. Test with errors.Is; drivers wrap them with the platform's message.
var (
	// ErrNoCapacity: the platform cannot provide the host now (no machines, a quota). Another host may work now, the
	// same one later.
	ErrNoCapacity = errors.New("no capacity")
	// ErrThrottled: too many calls. A retry in a few seconds can succeed.
	ErrThrottled = errors.New("throttled by the platform")
	// ErrStopping: the host is shutting down and can be woken once it is off.
	ErrStopping = errors.New("host is stopping")
	// ErrStarting: the host is starting and can be put to sleep once it is on.
	ErrStarting = errors.New("host is starting")
	// ErrInUse: the host refuses to sleep for now. A later sweep asks again.
	ErrInUse = errors.New("host refuses to sleep now")
	// ErrUnknownHost: the platform or the catalog has no such host. Waiting does not help.
	ErrUnknownHost = errors.New("unknown host")
	// ErrDenied: the caller may not do this (credentials, permissions). Waiting does not help.
	ErrDenied = errors.New("not permitted")
	// ErrFailed: the driver's method ran and failed, for example a command exited with an error or a process exited
	// immediately.
	ErrFailed = errors.New("failed")
	// ErrNoDriver: this program was built or started without the host's driver.
	ErrNoDriver = errors.New("no driver for the host here")
	// ErrLeaseLost: the host's power lease passed to another holder or could not be renewed. Its new holder continues.
	ErrLeaseLost = errors.New("the host's power lease was lost")
	// ErrClosed: the driver was closed.
	ErrClosed = errors.New("driver is closed")
)
