// Package power turns hosts on and off. A [Driver] knows one way of doing so (a local process, a command, Wake-on-LAN, EC2,
// an Auto Scaling group), each in a package of its own below this one; a [Set] chooses the driver of a host by the
// catalogue; gateways and the warmer call it.
//
// A driver moves power, nothing else. That a host is ready is told by its runner's registration in Redis, never by a
// driver; that it may be turned off is decided by the warmer after the runner said that nothing is open. Who calls a
// driver holds the host's power lease (infra/state), so that a wake and a sleep of one host do not meet; drivers stay
// correct without it, as leases end.
package power

import (
	"context"

	"reveille/infra/catalog"
)

// Power is a host's power state as its driver sees it.
type Power string

// The power states. Only some drivers report Starting and Stopping; others skip to On and Off.
const (
	Off      Power = "off"
	Starting Power = "starting"
	On       Power = "on"
	Stopping Power = "stopping"
	Unknown  Power = "unknown" // the driver does not know
)

// Driver turns hosts on and off. All methods are idempotent and safe for concurrent use, for one host and for many, and
// end soon after ctx does. Errors are, or wrap, those of this package where one fits; [waketest.Run] holds every driver
// to this contract.
//
// [waketest.Run]: https://pkg.go.dev/reveille/infra/power/waketest
type Driver interface {
	// Wake asks that the host be on. It returns when the request was accepted, not when the host serves: nil also for a
	// host that is on or starting. A host that is still stopping is waited for, or is ErrStopping.
	Wake(ctx context.Context, host catalog.Host) error
	// Sleep asks that the host be off. It returns when the request was accepted: nil also for a host that is off.
	Sleep(ctx context.Context, host catalog.Host) error
	// State returns the host's power state, Unknown if the driver does not know it.
	State(ctx context.Context, host catalog.Host) (Power, error)
}
