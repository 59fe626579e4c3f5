package sweep_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/state"
	"reveille/warmer/sweep"
)

func TestRepairsAfterDeadProcesses(t *testing.T) {
	t.Run("a silent host", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			p.boot("box", "chat")
			p.boxes["box"].on = false // killed
			p.after(11 * time.Second)
			equal(t, "noticed", summary(p.sweep(settings)), "")
			p.after(11 * time.Second)
			equal(t, "lost", summary(p.sweep(settings)), "lost box done")
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
			equal(t, "sweep", summary(p.sweep(settings)), "drop box/chat done")
			equal(t, "ticket", p.field("ticket:"+a.Ticket, "state"), "dropped")
		})
	})
	t.Run("a background load whose gateway died with the duty", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			_, err := p.store.Acquire(ctx, state.Want{Gateway: "gw", Model: "chat", Host: "box", Revision: p.revision("box", "chat"), Unattended: true})
			p.must(err)
			equal(t, "its lease runs", summary(p.sweep(settings)), "")
			p.after(16 * time.Second)
			equal(t, "sweep", summary(p.sweep(settings)), "wake box done")
			equal(t, "machine", p.on("box"), true)
		})
	})
	t.Run("a wake that never ends", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			_, err := p.store.Acquire(ctx, state.Want{Gateway: "gw", Model: "chat", Host: "box", Revision: p.revision("box", "chat"), Unattended: true})
			p.must(err)
			p.after(11 * time.Minute)
			equal(t, "sweep", summary(p.sweep(settings)), "stranded box done")
			equal(t, "state", p.field("host:box", "state"), "asleep")
			equal(t, "the next one", summary(p.sweep(settings)), "sleep box done")
			p.must(p.rdb.HSet(ctx, "rv:{main}:host:box", "state", "waking", "waking_ms", "1").Err())
			equal(t, "without a load", summary(p.sweep(settings)), "stranded box done")
			equal(t, "state", p.field("host:box", "state"), "asleep")
			equal(t, "the next one", summary(p.sweep(settings)), "sleep box done")
			equal(t, "the machine is turned off, should it be up", p.sleeps, 2)
		})
	})
	t.Run("a drain whose sweep died", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			p.commit()
			r, err := sweep.Run(ctx, p.deps(p.store), settings)
			p.must(err)
			equal(t, "its lease runs", summary(r), "")
			p.clock.Add(16_000)
			p.beat()
			r, err = sweep.Run(ctx, p.deps(p.store), settings)
			p.must(err)
			equal(t, "sweep", summary(r), "recall box done")
			equal(t, "state", p.field("host:box", "state"), "ready")
		})
	})
}

// stubborn is a machine that is off after the number of orders in obeys.
type stubborn struct{ orders, obeys int }

func (d *stubborn) Wake(context.Context, catalog.Host) error { return nil }

func (d *stubborn) Sleep(context.Context, catalog.Host) error { d.orders++; return nil }

func (d *stubborn) State(context.Context, catalog.Host) (power.Power, error) {
	if d.orders < d.obeys {
		return power.On, nil
	}
	return power.Off, nil
}

// A machine without any sign of life is turned off by each sweep until its driver reports that it is off.
func TestMachineOfALostHostIsTurnedOff(t *testing.T) {
	for name, tc := range map[string]struct {
		begin func(*pool)
		first int // the sweep, from 0, that turns it off first
	}{
		"its runner fell silent": {func(p *pool) {
			p.boot("box", "chat")
			p.boxes["box"].on = false
		}, 1},
		"its runner never came": {func(p *pool) {
			a := p.want("gw", "chat", "box")
			p.must(p.store.EndOverdueWake(ctx, "box", a.WakeToken, "no_capacity", "no word from the host within 10m0s"))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, p *pool) {
				tc.begin(p)
				d := &stubborn{obeys: 100}
				deps, s := p.deps(p.store), settings
				deps.Power = func(c *catalog.Catalog) sweep.Power {
					return power.NewSet(power.SetConfig{Catalog: func() *catalog.Catalog { return c }, Drivers: map[catalog.Driver]power.Driver{catalog.DriverLocal: d}})
				}
				s.PowerCall = 5 * time.Millisecond
				pending := 0
				for range 180 {
					p.after(time.Minute)
					r, err := sweep.Run(ctx, deps, s)
					p.must(err)
					if r.Hosts[0].PowerOffPending {
						pending++
					}
				}
				equal(t, "orders", d.orders, d.obeys)
				equal(t, "sweeps that reported it", pending, tc.first+d.obeys-1)
				equal(t, "state", p.field("host:box", "state"), "asleep")
				equal(t, "token", p.field("host:box", "sleep_token"), "")
			})
		})
	}
	t.Run("a host that has work or came back", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			p.boot("box", "chat")
			p.boxes["box"].on = false
			for range 8 {
				p.after(time.Minute)
				p.sweepAlone(settings)
			}
			_, err := p.store.Acquire(ctx, state.Want{Gateway: "gw", Model: "chat", Host: "box", Revision: p.revision("box", "chat"), Unattended: true})
			p.must(err)
			p.after(10 * time.Minute)
			if err := p.store.EndUnseen(ctx, "box", time.Minute); !errors.Is(err, state.ErrGone) {
				t.Fatal("a host with a load queued:", err)
			}
			p.boxes["box"].on = true
			p.beat()
			p.sweep(settings)
			equal(t, "state", p.field("host:box", "state"), "ready")
			equal(t, "sleeps", p.sleeps, 0)
		})
	})
}

// Machines of a group bear its name. One that claimed a slot, but whose runner does not serve, is that host's; one that
// never did stands for the first host without a machine.
func TestOrphanedMachinesOfAGroup(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.publish("hosts:\n  box: {driver: wol, mac: \"00:11:22:33:44:55\", devices: [cpu]}\n  gpu: {driver: asg, group: g, devices: [cpu], max: 3}\n")
		slots := []string{"gpu-1", "gpu-2", "gpu-3"}
		p.must(p.rdb.Set(ctx, "rv:{main}:epoch", "1", 0).Err()) // a pool that has been there for long
		if host, err := p.store.ClaimSlot(ctx, "i-a", slots); err != nil || host != "gpu-1" {
			t.Fatal(host, err)
		}
		deps := p.deps(p.store)
		deps.Machines = func(context.Context) ([]power.Machine, error) {
			up := time.Now().Add(-time.Hour)
			return []power.Machine{{ID: "i-x", Host: "gpu", Since: up}, {ID: "i-a", Host: "gpu", Since: up}}, nil
		}
		sweeps := func() string {
			t.Helper()
			r, err := sweep.Run(ctx, deps, settings)
			p.must(err)
			return summary(r)
		}
		equal(t, "first sight", sweeps(), "")
		p.after(10 * time.Minute)
		equal(t, "machines turned off", p.sleeps, 0)
		equal(t, "later", sweeps(), "orphan gpu-2 done, orphan gpu-1 done")
		equal(t, "machines turned off", p.sleeps, 0)
		equal(t, "next", sweeps(), "sleep gpu-1 done, sleep gpu-2 done")
	})
}

func TestOrphanedMachinesAreTurnedOff(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		up := func(host string, d time.Duration) power.Machine {
			return power.Machine{Host: host, Since: time.Now().Add(-d)}
		}
		var machines []power.Machine
		var refused error
		deps := p.deps(p.store)
		deps.Machines = func(context.Context) ([]power.Machine, error) { return machines, refused }
		sweeps := func() sweep.Report {
			t.Helper()
			defer p.living()()
			r, err := sweep.Run(ctx, deps, settings)
			p.must(err)
			return r
		}

		machines = []power.Machine{up("box", 10*time.Minute), up("unknown", time.Hour)}
		equal(t, "a first boot, and no host of the pool", summary(sweeps()), "")
		machines[0] = up("box", time.Hour)
		equal(t, "first sight", summary(sweeps()), "")
		p.after(9 * time.Minute)
		equal(t, "seen for nine minutes", summary(sweeps()), "")
		p.after(time.Minute)
		r := sweeps()
		equal(t, "a host that never came", summary(r), "orphan box done")
		equal(t, "machines that are billed", *r.Running, 2)
		equal(t, "machines turned off", p.sleeps, 0)
		equal(t, "next", summary(sweeps()), "sleep box done")
		equal(t, "machines turned off", p.sleeps, 1)
		equal(t, "again", summary(sweeps()), "")
		p.after(time.Hour)
		machines[0] = up("box", 11*time.Minute)
		equal(t, "a note from before the machine's start", summary(sweeps()), "")
		p.after(10 * time.Minute)
		equal(t, "again, later", summary(sweeps()), "orphan box done")
		equal(t, "next", summary(sweeps()), "sleep box done")

		p.boot("box", "chat")
		machines[0] = up("box", time.Hour)
		equal(t, "a host that serves", summary(sweeps()), "")
		p.must(p.rdb.FlushAll(ctx).Err())
		p.publish(models)
		r, err := sweep.Run(ctx, deps, settings) // before its runner's next beat
		p.must(err)
		equal(t, "a host that serves, unknown to Redis, which lost its data", summary(r), "")
		p.after(time.Hour)
		equal(t, "it registers again", summary(sweeps()), "")
		equal(t, "machines turned off", p.sleeps, 2)
		refused = errors.New("no permission")
		r = sweeps()
		equal(t, "a cloud that cannot list machines", summary(r), "orphan  failed")
		equal(t, "no number", r.Running == nil, true)
	})
	t.Run("a host that is wanted", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			p.want("gw", "chat", "box")
			if err := p.store.EndOrphan(ctx, "box", time.Hour, 0); !errors.Is(err, state.ErrGone) {
				t.Fatal(err)
			}
		})
	})
}

// Redis was restored to a moment when the host was waking, and the sweep is there before the runner's next beat: the
// machine serves, and is left alone.
func TestRestoredWakeTurnsNothingOff(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box", "chat")
		p.must(p.rdb.Del(ctx, "rv:{main}:models:box", "rv:{main}:model:box:chat", "rv:{main}:host:box").Err())
		p.must(p.rdb.HSet(ctx, "rv:{main}:host:box", "state", "waking", "waking_ms", "1").Err())
		r, err := sweep.Run(ctx, p.deps(p.store), settings)
		p.must(err)
		equal(t, "sweep", summary(r), "stranded box done")
		p.beat()
		equal(t, "the next one", summary(p.sweep(settings)), "")
		equal(t, "state", p.field("host:box", "state"), "ready")
		equal(t, "machines turned off", p.sleeps, 0)
	})
}
