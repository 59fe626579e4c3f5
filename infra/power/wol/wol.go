// Package wol is the power driver for machines in the same network that are turned on by Wake-on-LAN. Nothing can turn
// such a machine off from outside. Its runner does so with the command in its setting --sleep-command, once a stop has
// started.
package wol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/state"
)

var _ power.PoolDriver = (*Driver)(nil)

// defaultBroadcast is the packets' destination unless the catalog sets another.
const defaultBroadcast = "255.255.255.255:9"

// Config of a Driver. A zero value means the default.
type Config struct {
	// Repeat is the time between two packets until the machine responds; default 3 s. Packets can be lost, and a packet
	// that arrives while the machine is still shutting down has no effect.
	Repeat time.Duration
	// Settle is how long a wake watches a machine that is on, since it may be shutting down, and how long after it went
	// off the first packet is sent; default 5 s.
	Settle time.Duration
	// StateTimeout is the timeout for a machine to respond after a wake, or to shut down; default 2 min.
	StateTimeout time.Duration
	// Probe is the timeout of one check whether the runner's port accepts connections; default 1 s.
	Probe time.Duration
	Log   *slog.Logger // gets the steps of wakes; default: discard
}

// Driver sends magic packets. It has nothing to close.
type Driver struct {
	cfg  Config
	pool power.Pool // nil: packets are not reported
}

// New creates a driver.
func New(cfg Config) *Driver {
	cfg.Settle = cmp.Or(max(cfg.Settle, 0), 5*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Repeat = cmp.Or(max(cfg.Repeat, 0), 3*time.Second)
	cfg.StateTimeout = cmp.Or(max(cfg.StateTimeout, 0), 2*time.Minute)
	cfg.Probe = cmp.Or(max(cfg.Probe, 0), time.Second)
	return &Driver{cfg: cfg}
}

// WithPool returns the driver with a pool that learns of the packets it sends.
func (d *Driver) WithPool(p power.Pool) power.Driver { return &Driver{d.cfg, p} }

// Wake sends magic packets until the runner's port accepts connections. A machine that is on may be shutting down: it
// is watched for Config.Settle, and gets packets from that long after it went off. A host without an address gets one
// packet, and only its registration shows that the packet arrived.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	mac, err := net.ParseMAC(host.MAC)
	if err != nil {
		return fmt.Errorf("%w: %w", power.ErrUnknownHost, err)
	}
	packet, err := Packet(mac, host.SecureOnPassword())
	if err != nil {
		return fmt.Errorf("%w: %w", power.ErrUnknownHost, err)
	}
	target := cmp.Or(host.Broadcast, defaultBroadcast)
	log := d.cfg.Log.With("host", host.Name, "address", host.Address)
	if stayed, err := d.settle(ctx, host, log); err != nil || stayed {
		return err
	}
	err = d.until(ctx, host, power.On, func() error {
		log.Info("magic packet sent; the runner's port is closed", "mac", host.MAC, "to", target)
		if d.pool != nil { // before the packet, since the machine may register right after it
			if err := d.pool.ReportPacket(ctx, host.Name); err != nil && !errors.Is(err, state.ErrGone) {
				log.Warn("the packet could not be recorded; this wake may not prove the host", "error", err)
			}
		}
		return d.send(ctx, target, packet)
	})
	if err == nil && host.Address != "" {
		log.Info("the runner's port is open")
	}
	return err
}

// settle watches a machine that is on for as long as it may be shutting down. It returns true if the machine stayed on.
func (d *Driver) settle(ctx context.Context, host catalog.Host, log *slog.Logger) (stayed bool, err error) {
	wait := func() error {
		select {
		case <-time.After(min(d.cfg.Repeat, d.cfg.Settle)):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	is, err := d.State(ctx, host)
	if err != nil || is != power.On {
		return false, err
	}
	log.Info("the runner's port is open; waiting in case the machine is shutting down")
	for end := time.Now().Add(d.cfg.Settle); is == power.On; {
		if time.Now().After(end) {
			return true, nil
		}
		if err := wait(); err != nil {
			return false, err
		}
		if is, err = d.State(ctx, host); err != nil {
			return false, err
		}
	}
	log.Info("the machine is shutting down")
	for end := time.Now().Add(d.cfg.Settle); time.Now().Before(end); {
		if err := wait(); err != nil {
			return false, err
		}
	}
	return false, nil
}

// Sleep waits until the runner has turned the machine off. power.ErrFailed: the machine stays on. A host without an
// address in the catalog counts as off.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	if _, err := net.ParseMAC(host.MAC); err != nil {
		return fmt.Errorf("%w: %w", power.ErrUnknownHost, err)
	}
	return d.until(ctx, host, power.Off, func() error { return nil })
}

// until repeats do until the host is in the wanted state.
func (d *Driver) until(ctx context.Context, host catalog.Host, want power.Power, do func() error) error {
	for end := time.Now().Add(d.cfg.StateTimeout); ; {
		is, err := d.State(ctx, host)
		if err != nil || is == want {
			return err
		}
		if err := do(); err != nil {
			return fmt.Errorf("%w: %w", power.ErrFailed, err)
		}
		if is == power.Unknown {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: the runner at %s is still %s after %v", power.ErrFailed, host.Address, is, d.cfg.StateTimeout)
		}
		select {
		case <-time.After(d.cfg.Repeat):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *Driver) send(ctx context.Context, target string, packet []byte) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(packet)
	return err
}

// State returns On if the runner's port accepts connections, Off if it does not, Unknown without an address.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	if host.Address == "" {
		return power.Unknown, nil
	}
	conn, err := (&net.Dialer{Timeout: d.cfg.Probe}).DialContext(ctx, "tcp", host.Address)
	switch {
	case err == nil:
		_ = conn.Close()
		return power.On, nil
	case ctx.Err() != nil:
		return power.Unknown, context.Cause(ctx)
	}
	return power.Off, nil
}
