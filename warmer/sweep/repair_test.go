package sweep_test

import (
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/warmer/sweep"
)

func TestRepairs(t *testing.T) {
	t.Run("a silent host", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			p.boot("box", "chat")
			p.boxes["box"].on = false // killed
			p.after(11 * time.Second)
			equal(t, "noticed", told(p.sweep(settings)), "")
			p.after(11 * time.Second)
			equal(t, "lost", told(p.sweep(settings)), "lost box done")
			equal(t, "state", p.field("host:box", "state"), "lost")
			equal(t, "models", p.field("model:box:chat", "state"), "")
			a := p.want("gw", "chat", "box")
			if a.WakeToken == "" {
				t.Fatal("a lost host is not woken")
			}
		})
	})
	t.Run("a paused runner that comes back", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			p.boot("box", "chat")
			p.boxes["box"].on = false
			p.after(11 * time.Second)
			p.sweep(settings)
			p.after(11 * time.Second)
			p.sweep(settings)
			p.boxes["box"].on = true
			p.beat()
			equal(t, "state", p.field("host:box", "state"), "ready")
			equal(t, "models", p.field("model:box:chat", "state"), "loaded")
		})
	})
	t.Run("a load that nobody waits for", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			a := p.want("gw", "chat", "box")
			p.after(16 * time.Second)
			equal(t, "sweep", told(p.sweep(settings)), "drop box/chat done")
			equal(t, "ticket", p.field("ticket:"+a.Ticket, "state"), "dropped")
		})
	})
	t.Run("a background load whose gateway died with the duty", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			_, err := p.store.Acquire(ctx, state.Want{Gateway: "gw", Model: "chat", Host: "box", Revision: p.revision(), Background: true})
			p.must(err)
			equal(t, "its lease runs", told(p.sweep(settings)), "")
			p.after(16 * time.Second)
			equal(t, "sweep", told(p.sweep(settings)), "wake box done")
			equal(t, "machine", p.on("box"), true)
		})
	})
	t.Run("a wake that never ends", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			_, err := p.store.Acquire(ctx, state.Want{Gateway: "gw", Model: "chat", Host: "box", Revision: p.revision(), Background: true})
			p.must(err)
			p.after(11 * time.Minute)
			equal(t, "sweep", told(p.sweep(settings)), "stranded box done")
			equal(t, "state", p.field("host:box", "state"), "asleep")
			p.must(p.rdb.HSet(ctx, "rv:{main}:host:box", "state", "waking", "waking_ms", "1").Err())
			equal(t, "without a load", told(p.sweep(settings)), "stranded box done, sleep box done")
			equal(t, "state", p.field("host:box", "state"), "asleep")
			equal(t, "the machine is turned off, should it be up", p.sleeps, 1)
		})
	})
	t.Run("a drain whose sweep died", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			p.commit()
			r, err := sweep.Run(ctx, p.deps(p.store), settings)
			p.must(err)
			equal(t, "its lease runs", told(r), "")
			p.clock.Add(16_000)
			p.beat()
			r, err = sweep.Run(ctx, p.deps(p.store), settings)
			p.must(err)
			equal(t, "sweep", told(r), "recall box done")
			equal(t, "state", p.field("host:box", "state"), "ready")
		})
	})
}
