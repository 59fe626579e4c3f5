package sweep_test

import (
	"strings"
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

// A host sleeps by its own idle time, and planned loads wake no host that rests or has used up its hours.
func TestHostsWithTheirOwnTimes(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		warm := func(fields string) {
			text := strings.Replace(models, "box: {driver: local,", "box: {driver: local, "+fields+",", 1)
			p.publish(text + "warm:\n  - {model: chat, schedule: \"* * * * *\", for: 2h}\n")
		}
		p.publish(strings.Replace(models, "box: {driver: local,", "box: {driver: local, idle: 2h,", 1))
		p.boot("box")
		p.after(time.Hour)
		equal(t, "before its idle time", summary(p.sweep(settings)), "")
		p.after(time.Hour)
		equal(t, "after it", summary(p.sweep(settings)), "sleep box done")
		p.must(p.store.CountHours(ctx, time.Hour, nil))
		p.after(time.Hour)
		p.must(p.store.CountHours(ctx, 2*time.Hour, []state.HostOn{{Name: "box"}}))
		warm("daily_host_hours: 1")
		equal(t, "no hours left", summary(p.sweep(settings)), "warm /chat refused")
		warm(`rest: {schedule: "0 10 * * *", for: 3h}`) // it is 10 o'clock
		equal(t, "at rest", summary(p.sweep(settings)), "warm /chat refused")
		warm("daily_host_hours: 2")
		equal(t, "hours left", summary(p.sweep(settings)), "warm box/chat queued, wake box done")
	})
}
