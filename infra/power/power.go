// Package power turns hosts on and off. A [Driver] implements one way to do so (a runner in this process, a command,
// Kubernetes, Wake-on-LAN, EC2, an Auto Scaling group), each in its own package below this one. A [Set] chooses a
// host's driver by the catalog. Gateways and the warmer call it.
//
// A sleep has two steps: the host's runner confirms that it has drained, then its driver turns the machine off (the
// stop). Drivers only switch power. A host is ready when its runner has registered in Redis, which no driver reports.
// The warmer, or a gateway that is asked to, turns it off after the runner has confirmed that no request is open. The
// caller of a driver holds the host's power lease (infra/state), so that a host's wake and sleep do not overlap. Since
// leases expire, drivers stay correct without it.
package power

import (
	"context"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/state"
)

// Power is a host's power state as its driver sees it.
type Power string

// Power states. Only some drivers report Starting and Stopping; others go straight to On and Off.
const (
	Off      Power = "off"
	Starting Power = "starting"
	On       Power = "on"
	Stopping Power = "stopping"
	Unknown  Power = "unknown" // the driver does not know
)

// Driver turns hosts on and off. All methods are idempotent, safe for concurrent use, for one host and for many, and
// return soon after ctx ends. Errors are, or wrap, those of this package where one fits. Package waketest checks
// every driver against this contract.
type Driver interface {
	// Wake requests that the host be on. It returns when the request is accepted, not when the host serves, and returns
	// nil also for a host that is on or starting. For a host that is still stopping it waits or returns ErrStopping.
	Wake(ctx context.Context, host catalog.Host) error
	// Sleep requests that the host be off. It returns when the request is accepted, and returns nil also for a host
	// that is off.
	Sleep(ctx context.Context, host catalog.Host) error
	// State returns the host's power state, Unknown if the driver does not know it.
	State(ctx context.Context, host catalog.Host) (Power, error)
}

// Pool is the part of the pool's state that drivers read and write; *state.Store implements it.
type Pool interface {
	Snapshot(ctx context.Context) (*state.Snapshot, error)
	LeaseGroup(ctx context.Context, group, owner string, lease time.Duration) error
	ReleaseSlot(ctx context.Context, host, machine string) error
	ReportPacket(ctx context.Context, host string) error
}

// PoolDriver is a driver that needs the state of the pool: to turn the slots of a group on and off (catalog.Host.Of),
// or to report what it has sent. It uses the pool that WithPool gives it.
type PoolDriver interface {
	Driver
	WithPool(p Pool) Driver
}

// Machine is a machine that its cloud reports as starting or running, so that it costs money.
type Machine struct {
	ID    string
	Host  string    // the value of its tag Host, a host or a group
	Since time.Time // when it was last started
}
