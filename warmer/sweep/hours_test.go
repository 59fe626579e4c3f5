package sweep_test

import (
	"testing"
	"time"

	"reveille/infra/state"
)

// Sweeps count the hours of hosts that are on, with their price, and those of a machine that is not known to be off.
func TestHours(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.publish(models + "  paid: {driver: exec, devices: [cpu], price: 60, commands: {wake: [x], sleep: [x]}}\n")
		p.boot("box", "chat")
		p.boot("paid")
		p.sweep(settings)
		day := func() state.Day {
			t.Helper()
			d, err := p.store.Day(ctx, time.UnixMilli(p.clock.Load()))
			p.must(err)
			return d
		}
		p.after(time.Minute)
		p.sweep(settings)
		equal(t, "a host", day().Hosts["paid"], state.HostDay{Awake: time.Minute, Idle: time.Minute, Cost: 1})
		equal(t, "a host that never woke", day().Hosts["far"], state.HostDay{})
		dry := settings
		dry.DryRun = true
		p.after(time.Minute)
		p.sweep(dry)
		equal(t, "a dry run", day().Hosts["paid"].Awake, time.Minute)
		a := p.want("gw", "paint", "far")
		p.must(p.store.EndOverdueWake(ctx, "far", a.WakeToken, "no_capacity", "it may be on"))
		p.sweep(settings)
		equal(t, "not known to be off", day().Hosts["far"], state.HostDay{Awake: time.Minute, Overdue: 1})
		equal(t, "counted", day().Counted, 2*time.Minute)
	})
}
