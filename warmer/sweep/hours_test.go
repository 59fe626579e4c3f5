package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/state"
	"reveille/warmer/sweep"
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

// A Wake-on-LAN host is put to sleep unattended only once the pool has turned its machine off and a magic packet has
// woken it. A machine that stayed on, or came back by itself, proves nothing.
func TestUnprovenHost(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.publish(strings.Replace(models, "box: {driver: local,", `box: {driver: wol, mac: "00:11:22:33:44:55",`, 1))
		p.boot("box")
		p.after(time.Hour)
		equal(t, "never woken", summary(p.sweep(settings)), "sleep box refused")
		equal(t, "state", p.field("host:box", "state"), "ready")
		p.boxes["box"].on = false
		for range 2 {
			p.after(11 * time.Second)
			p.sweepAlone(settings)
		}
		equal(t, "silent", p.field("host:box", "state"), "lost")

		// sleep is gateway sleep, whose driver finds the machine off, or fails; wake is a request's wake, whose driver
		// sends a packet if it finds the machine off.
		sleep := func(failure string) {
			t.Helper()
			s, err := p.store.Snapshot(ctx)
			p.must(err)
			token, err := p.store.CommitSleep(ctx, "box", "gw", s.RevisionOf("box", ""), s.Hosts["box"].Fields["active_ms"])
			p.must(err)
			p.work()
			p.must(p.store.BeginStop(ctx, "box", "gw", token))
			p.boxes["box"].on = failure != ""
			p.must(p.store.EndStop(ctx, "box", "gw", token, failure))
		}
		wake := func() (packet error) {
			t.Helper()
			if a := p.want("gw", "chat", "box"); a.WakeToken == "" {
				t.Fatal("no wake")
			}
			if !p.boxes["box"].on {
				packet = p.store.ReportPacket(ctx, "box")
				p.boot("box")
			}
			p.work()
			p.work()
			equal(t, "state", p.field("host:box", "state"), "ready")
			_, err := p.store.Acquire(ctx, state.Want{Gateway: "gw", Model: "chat", Unload: true, Host: "box", Revision: p.revision("box", "chat")})
			p.must(err)
			p.work()
			return packet
		}
		if err := wake(); !errors.Is(err, state.ErrGone) {
			t.Fatal("the packet to a machine that the pool has not turned off:", err)
		}
		equal(t, "proven by the start of a machine that was lost", p.field("host:box", "proven"), "")
		sleep("it is still on")
		p.must(wake())
		equal(t, "proven although it stayed on", p.field("host:box", "proven"), "")
		sleep("")
		p.boxes["box"].on = true // its owner pressed the button
		p.must(wake())
		equal(t, "proven without a packet", p.field("host:box", "proven"), "")
		p.after(time.Hour)
		equal(t, "unproven", summary(p.sweep(settings)), "sleep box refused")

		sleep("")
		p.must(wake())
		equal(t, "proven", p.field("host:box", "proven"), "1")
		p.registerLocked("box", p.boxes["box"])
		equal(t, "proven after another registration", p.field("host:box", "proven"), "1")
		p.after(time.Hour)
		equal(t, "proven", summary(p.sweep(settings)), "sleep box done")
	})
}

// A driver that asks to try a sleep later has not failed.
func TestSleepThatIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box")
		p.after(time.Hour)
		deps := p.deps(p.store)
		deps.Power = func(*catalog.Catalog) sweep.Power { return refusingPower{switches{p}} }
		defer p.living()()
		r, err := sweep.Run(ctx, deps, settings)
		p.must(err)
		equal(t, "sweep", summary(r), "sleep box refused")
		equal(t, "failures", r.Failures(), 0)
		p.after(time.Minute)
		r, err = sweep.Run(ctx, p.deps(p.store), settings)
		p.must(err)
		equal(t, "next sweep", summary(r), "sleep box done")
	})
}

type refusingPower struct{ switches }

func (refusingPower) Sleep(context.Context, string) error {
	return fmt.Errorf("%w: a backup runs", power.ErrInUse)
}
