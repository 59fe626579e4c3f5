package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/wake"
	"reveille/testenv/check"
)

// machine is what a host's runner runs on. mu guards its fields; it is taken after runner.mu and nothing is called under it.
type machine struct {
	mu     sync.Mutex
	power  wake.Power
	refuse int           // so many wakes are still refused
	deaf   int           // so many boots bring no runner
	ignore int           // so many sleeps are accepted and have no effect
	linger time.Duration // how much longer the next way down takes
	mute   bool          // it came up without a runner
}

// set changes a machine.
func (m *machine) set(change func(*machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

// runs reports whether the machine can run a runner.
func (m *machine) runs() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.power == wake.On && !m.mute
}

func (m *machine) is() wake.Power {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.power
}

// machines is the driver of all hosts that the catalogue names.
type machines struct{ w *world }

var _ wake.Driver = machines{}

// power is the hosts of the catalogue as gateways and the warmer turn them on and off.
func (w *world) power() *wake.Set {
	return wake.NewSet(wake.SetConfig{
		Catalog: w.models, Drivers: map[catalog.Driver]wake.Driver{catalog.DriverExec: machines{w}},
	})
}

func (d machines) find(host catalog.Host) *runner {
	for _, r := range d.w.runners {
		if r.name == host.Name {
			return r
		}
	}
	panic("the catalogue names a host that the scenario does not have: " + host.Name)
}

// Wake implements wake.Driver.
func (d machines) Wake(_ context.Context, host catalog.Host) error {
	r, m := d.find(host), &d.find(host).machine
	m.mu.Lock()
	was, refused, mute, deaf := m.power, m.refuse > 0, m.mute, m.deaf > 0
	switch {
	case refused:
		m.refuse--
	case was == wake.Off:
		m.power = wake.Starting
		if deaf {
			m.deaf--
		}
	}
	m.mu.Unlock()
	switch {
	case refused:
		d.w.record(check.Event{Kind: check.WakeFailed, Host: r.name})
		return fmt.Errorf("%w: no machine for %s", wake.ErrNoCapacity, r.name)
	case was == wake.Stopping:
		return wake.ErrStopping
	case was == wake.On && mute:
		d.w.record(check.Event{Kind: check.WakeFailed, Host: r.name})
	case was == wake.On: // its runner may have ended
		r.start()
	case was == wake.Off:
		took := time.Duration(200+chance(d.w.scenario.Seed, "wake", r.name, d.w.serial("wake"+r.name))%3000) * time.Millisecond
		time.AfterFunc(took, func() { r.booted(!deaf) })
	}
	return nil
}

// booted is a machine that came up, with its runner or without.
func (r *runner) booted(runs bool) {
	r.machine.set(func(m *machine) { m.power, m.mute = wake.On, !runs })
	if runs {
		r.start()
	} else {
		r.w.record(check.Event{Kind: check.WakeFailed, Host: r.name})
	}
}

// Sleep implements wake.Driver. One machine of two ends its runner in order first, the others just go off.
func (d machines) Sleep(_ context.Context, host catalog.Host) error {
	r, m := d.find(host), &d.find(host).machine
	n := chance(d.w.scenario.Seed, "off", r.name, d.w.serial("off"+r.name))
	took := time.Duration(200+n%2800) * time.Millisecond
	m.mu.Lock()
	if m.power == wake.Starting {
		m.mu.Unlock()
		return wake.ErrStarting
	}
	if m.power == wake.On && m.ignore > 0 {
		m.ignore--
		m.mu.Unlock()
		d.w.record(check.Event{Kind: check.WakeFailed, Host: r.name}) // until it is told again: its runner may not serve
		return nil
	}
	goes := m.power == wake.On
	if goes {
		m.power = wake.Stopping
		took += m.linger
		m.linger = 0
	}
	m.mu.Unlock()
	if !goes {
		return nil
	}
	d.w.record(check.Event{Kind: check.PowerOff, Host: r.name})
	if n%2 == 0 {
		r.stop()
	}
	time.AfterFunc(took, func() {
		r.crash()
		m.set(func(m *machine) { m.power, m.mute = wake.Off, false })
	})
	return nil
}

// State implements wake.Driver.
func (d machines) State(_ context.Context, host catalog.Host) (wake.Power, error) {
	return d.find(host).machine.is(), nil
}
