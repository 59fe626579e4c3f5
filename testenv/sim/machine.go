package sim

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/testenv/check"
)

// machine is what a host's runner runs on. mu guards its fields; it is taken after runner.mu and nothing is called
// under it.
type machine struct {
	mu     sync.Mutex
	power  power.Power
	since  time.Time     // when it was last started
	refuse int           // so many wakes are still refused
	deaf   int           // so many boots bring no runner
	ignore int           // so many sleeps are accepted and have no effect
	linger time.Duration // how much longer the next way down takes
	mute   bool          // it came up without a runner
	barred bool          // it ignored a sleep, and the pool may take it for going down: its runner may not register
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
	return m.power == power.On && !m.mute
}

func (m *machine) is() power.Power {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.power
}

// machines is the driver of all hosts that the catalog names.
type machines struct{ w *world }

var _ power.Driver = machines{}

// power is the hosts of the catalog as gateways and the warmer turn them on and off.
func (w *world) power() *power.Set {
	drivers := map[catalog.Driver]power.Driver{catalog.DriverExec: machines{w}}
	if w.group != nil {
		drivers[catalog.DriverASG] = w.group.driver()
	}
	return power.NewSet(power.SetConfig{Catalog: w.models, Drivers: drivers})
}

// billed lists the running machines, as their cloud does.
func (w *world) billed(context.Context) ([]power.Machine, error) {
	if w.group != nil {
		return w.group.billed(), nil
	}
	var out []power.Machine
	for _, r := range w.runners {
		r.machine.mu.Lock()
		if m := &r.machine; m.power == power.On || m.power == power.Starting {
			out = append(out, power.Machine{Host: r.name, Since: m.since})
		}
		r.machine.mu.Unlock()
	}
	return out, nil
}

func (d machines) find(host catalog.Host) *runner {
	for _, r := range d.w.runners {
		if r.name == host.Name {
			return r
		}
	}
	panic("the catalogue names a host that the scenario does not have: " + host.Name)
}

// Wake implements power.Driver.
func (d machines) Wake(_ context.Context, host catalog.Host) error {
	r, m := d.find(host), &d.find(host).machine
	m.mu.Lock()
	was, refused, mute, barred, deaf := m.power, m.refuse > 0, m.mute, m.barred, m.deaf > 0
	switch {
	case refused:
		m.refuse--
	case was == power.Off:
		m.power, m.since = power.Starting, time.Now()
		if deaf {
			m.deaf--
		}
	}
	m.mu.Unlock()
	switch {
	case refused:
		d.w.record(check.Event{Kind: check.WakeFailed, Host: r.name})
		return fmt.Errorf("%w: no machine for %s", power.ErrNoCapacity, r.name)
	case was == power.Stopping:
		return power.ErrStopping
	case was == power.On && mute:
		d.w.record(check.Event{Kind: check.WakeFailed, Host: r.name})
	case was == power.On:
		if barred && r.current() != nil {
			d.w.record(check.Event{Kind: check.WakeFailed, Host: r.name})
		}
		r.start() // it may have ended
	case was == power.Off:
		took := time.Duration(200+chance(d.w.scenario.Seed, "wake", r.name, d.w.serial("wake"+r.name))%3000) * time.Millisecond
		time.AfterFunc(cmp.Or(d.w.scenario.Copies.Wake, took), func() { r.booted(!deaf) })
	}
	return nil
}

// booted is a machine that came up, with its runner or without.
func (r *runner) booted(runs bool) {
	r.machine.set(func(m *machine) { m.power, m.mute = power.On, !runs })
	if runs {
		r.start()
	} else {
		r.w.record(check.Event{Kind: check.WakeFailed, Host: r.name})
	}
}

// Sleep implements power.Driver. One machine of two ends its runner in order first, the others just go off.
func (d machines) Sleep(_ context.Context, host catalog.Host) error {
	r, m := d.find(host), &d.find(host).machine
	n := chance(d.w.scenario.Seed, "off", r.name, d.w.serial("off"+r.name))
	took := time.Duration(200+n%2800) * time.Millisecond
	m.mu.Lock()
	if m.power == power.Starting {
		m.mu.Unlock()
		return power.ErrStarting
	}
	if m.power == power.On && m.ignore > 0 {
		m.ignore--
		m.barred = true
		m.mu.Unlock()
		d.w.record(check.Event{Kind: check.WakeFailed, Host: r.name}) // until it is told again: its runner may not serve
		return nil
	}
	goes := m.power == power.On
	if goes {
		m.power, m.barred = power.Stopping, false
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
		m.set(func(m *machine) { m.power, m.mute = power.Off, false })
	})
	return nil
}

// State implements power.Driver.
func (d machines) State(_ context.Context, host catalog.Host) (power.Power, error) {
	return d.find(host).machine.is(), nil
}
