package sweep_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/state"
	"reveille/warmer/sweep"
)

func TestModelsAreUnloadedBeforeHostsSleep(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box", "chat", "embed")
		equal(t, "at once", summary(p.sweep(settings)), "")
		p.after(11 * time.Minute)
		equal(t, "chat is idle", summary(p.sweepAlone(settings)), "unload box/chat queued")
		p.work()
		equal(t, "embed has two hours", summary(p.sweep(settings)), "")
		p.after(2 * time.Hour)
		equal(t, "embed is idle", summary(p.sweepAlone(settings)), "unload box/embed queued")
		p.work()
		equal(t, "the host is idle", summary(p.sweep(settings)), "sleep box done")
		equal(t, "state", p.field("host:box", "state"), "asleep")
		equal(t, "token", p.field("host:box", "sleep_token"), "")
		equal(t, "power lease", p.field("wake:box", "token"), "")
		equal(t, "machine", p.on("box"), false)
		equal(t, "afterwards", summary(p.sweep(settings)), "")
		equal(t, "calls of the driver", p.sleeps, 1)
	})
}

// The pods of a StatefulSet end from the last one: a slot before an awake one stays awake, since its pod does. Slots
// that are idle together go together.
func TestSlotsOfAStatefulSet(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.publish(models + "  gpu: {driver: kubernetes, workload: statefulset/gpu, devices: [cpu], max: 3}\n")
		p.boot("gpu-1")
		p.boot("gpu-2", "embed")
		p.boot("gpu-3")
		p.after(20 * time.Minute)
		equal(t, "with a model on the second", summary(p.sweep(settings)), "sleep gpu-3 done")
		p.after(2 * time.Hour)
		equal(t, "the model is idle", summary(p.sweepAlone(settings)), "unload gpu-2/embed queued")
		p.work()
		equal(t, "both are idle", summary(p.sweep(settings)), "sleep gpu-1 done, sleep gpu-2 done")
	})
}

func TestRunnerChecksUnloadsAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box", "chat")
		p.after(time.Hour)
		_, err := sweep.Run(ctx, p.deps(p.store), settings)
		p.must(err)
		s, err := p.store.Snapshot(ctx)
		p.must(err)
		equal(t, "tickets", len(s.Hosts["box"].Queue), 1)
		ticket := s.Hosts["box"].Queue[0]
		equal(t, "kind", ticket.Kind, "unload")
		equal(t, "only_idle_ms", ticket.Fields["only_idle_ms"], fmt.Sprint((10 * time.Minute).Milliseconds()))
	})
}

func TestBusyModelsAndHostsStay(t *testing.T) {
	for name, keep := range map[string]func(*pool) sweep.Settings{
		"idle time set to never": func(p *pool) sweep.Settings {
			p.must(p.store.Set(ctx, state.IdleTTL, "chat", "-1"))
			return settings
		},
		"pinned": func(p *pool) sweep.Settings {
			p.must(p.store.PutModels(ctx, "box", p.boxes["box"].gen, []state.ModelPut{{ID: "chat", Fields: map[string]string{"type": "llm", "state": "loaded", "pinned": "1"}}}))
			return settings
		},
		"busy": func(p *pool) sweep.Settings {
			p.must(p.store.PutModels(ctx, "box", p.boxes["box"].gen, []state.ModelPut{{ID: "chat", Fields: map[string]string{"type": "llm", "state": "loaded", "in_flight": "1"}}}))
			return settings
		},
		"a load of it is queued": func(p *pool) sweep.Settings {
			_, err := p.store.Acquire(ctx, state.Want{Gateway: "g", Model: "chat", Host: "box", Revision: p.revision("box", "chat"), Anew: true, Unattended: true})
			p.must(err)
			return settings
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, p *pool) {
				p.boot("box", "chat")
				p.after(time.Hour)
				r, err := sweep.Run(ctx, p.deps(p.store), keep(p))
				p.must(err)
				equal(t, "actions", summary(r), "")
			})
		})
	}
	onBoth(t, func(t *testing.T, p *pool) {
		p.mu.Lock()
		p.bootLocked("far") // its driver is not available here
		p.mu.Unlock()
		p.after(time.Hour)
		equal(t, "a host that nobody here can wake", summary(p.sweep(settings)), "")
	})
}

func (p *pool) revision(host, model string) uint64 {
	s, err := p.store.Snapshot(ctx)
	p.must(err)
	return s.RevisionOf(host, model)
}

// dump returns every key with its content.
func (p *pool) dump() string {
	keys, err := p.rdb.Keys(ctx, "*").Result()
	p.must(err)
	sort.Strings(keys)
	var out strings.Builder
	for _, k := range keys {
		typ, err := p.rdb.Type(ctx, k).Result()
		p.must(err)
		var v any
		switch typ {
		case "string":
			v, err = p.rdb.Get(ctx, k).Result()
		case "hash":
			v, err = p.rdb.HGetAll(ctx, k).Result() // fmt prints maps in order
		case "list":
			v, err = p.rdb.LRange(ctx, k, 0, -1).Result()
		case "set":
			v, err = p.rdb.SMembersMap(ctx, k).Result()
		case "zset":
			v, err = p.rdb.ZRangeWithScores(ctx, k, 0, -1).Result()
		}
		p.must(err)
		fmt.Fprintln(&out, k, typ, v)
	}
	return out.String()
}

func TestDryRunChangesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box", "chat")
		p.after(time.Hour)
		dry := settings
		dry.DryRun = true
		before := p.dump()
		r, err := sweep.Run(ctx, p.deps(p.store), dry)
		p.must(err)
		equal(t, "plan", summary(r), "unload box/chat planned")
		p.must(p.store.DropModel(ctx, "box", p.boxes["box"].gen, "chat", "", false))
		p.boxes["box"].models = nil
		before2 := p.dump()
		r, err = sweep.Run(ctx, p.deps(p.store), dry)
		p.must(err)
		equal(t, "plan", summary(r), "sleep box planned")
		if before == before2 || p.dump() != before2 {
			t.Fatal("the dry run changed the pool")
		}
		var out bytes.Buffer
		p.must(r.Table(&out))
		if !strings.Contains(out.String(), "sleep   box   -      planned  host_idle: idle for 1h0m0s") {
			t.Error("table:\n" + out.String())
		}
	})
}

// TestWorkAtAnyStepCancelsTheSleep makes a request at each step of a sleep. It is served after at most one wake.
func TestWorkAtAnyStepCancelsTheSleep(t *testing.T) {
	served := func(p *pool, a state.Acquired) {
		p.t.Helper()
		for range 10 {
			st, err := p.store.Renew(ctx, "gw", state.Renewal{Ticket: a.Ticket})
			p.must(err)
			if st[0].Record.State == "ready" {
				return
			}
			if st[0].WakeToken != "" {
				p.must(switches{p}.Wake(ctx, "box"))
			}
			p.work()
		}
		p.t.Fatal("the request is lost")
	}
	t.Run("draining", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			token := p.commit()
			a := p.want("gw", "chat", "box")
			equal(t, "duty", a.WakeToken, "")
			equal(t, "state", p.field("host:box", "state"), "ready") // the request cancels the sleep
			if err := p.store.ConfirmSleep(ctx, "box", p.boxes["box"].gen, token, false); !errors.Is(err, state.ErrGone) {
				t.Fatal("confirm:", err)
			}
			equal(t, "lease", p.field("wake:box", "token"), "")
			served(p, a)
			equal(t, "wakes", p.wakes, 0)
		})
	})
	t.Run("asleep, before the stop", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			token := p.commit()
			p.must(p.store.ConfirmSleep(ctx, "box", p.boxes["box"].gen, token, false))
			p.must(p.store.ConfirmSleep(ctx, "box", p.boxes["box"].gen, token, false)) // as if its response was lost
			a := p.want("gw", "chat", "box")
			equal(t, "duty while the sweep holds the power", a.WakeToken, "")
			if err := p.store.BeginStop(ctx, "box", "s", token); !errors.Is(err, state.ErrWanted) {
				t.Fatal("stop:", err)
			}
			served(p, a) // the runner is alive: it registers at its next beat
			equal(t, "state", p.field("host:box", "state"), "ready")
		})
	})
	t.Run("while the driver works", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			p.boot("box")
			p.after(time.Hour)
			var a state.Acquired
			p.onOff = func(string) {
				a = p.want("gw", "chat", "box")
				st, err := p.store.Renew(ctx, "gw", state.Renewal{Ticket: a.Ticket})
				p.must(err)
				equal(t, "duty while the driver works", a.WakeToken+st[0].WakeToken, "")
			}
			equal(t, "sweep", summary(p.sweep(settings)), "sleep box done")
			equal(t, "machine", p.on("box"), false)
			served(p, a)
			equal(t, "wakes", p.wakes, 1)
		})
	})
	t.Run("asleep", func(t *testing.T) {
		onBoth(t, func(t *testing.T, p *pool) {
			p.boot("box")
			p.after(time.Hour)
			p.sweep(settings)
			a := p.want("gw", "chat", "box")
			if a.WakeToken == "" {
				t.Fatal("no power lease")
			}
			p.must(switches{p}.Wake(ctx, "box"))
			served(p, a)
			equal(t, "wakes", p.wakes, 1)
		})
	})
}

// commit makes box drain for the sweep "s".
func (p *pool) commit() string {
	p.t.Helper()
	p.boot("box")
	token, err := p.store.CommitSleep(ctx, "box", "s", p.revision("box", "chat"), p.field("host:box", "active_ms"))
	p.must(err)
	return token
}

func TestStaleCommitIsRepeated(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*pool)
		want   error
	}{
		"the host changed": {func(p *pool) { p.want("gw", "chat", "box") }, state.ErrStale},
		"a request since":  {func(p *pool) { p.must(p.rdb.HSet(ctx, "rv:{main}:host:box", "active_ms", "1").Err()) }, state.ErrStale},
		"silent":           {func(p *pool) { p.clock.Add(11_000) }, state.ErrStale},
		"a model came":     {func(p *pool) { p.must(p.rdb.SAdd(ctx, "rv:{main}:models:box", "m").Err()) }, state.ErrWanted},
		"another has the duty": {func(p *pool) {
			p.must(p.rdb.HSet(ctx, "rv:{main}:wake:box", "owner", "x", "token", "1", "exp_ms", "99999999999999").Err())
		}, state.ErrWanted},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, p *pool) {
				p.boot("box")
				rev, active := p.revision("box", "chat"), p.field("host:box", "active_ms")
				tc.change(p)
				before := p.dump()
				if _, err := p.store.CommitSleep(ctx, "box", "s", rev, active); !errors.Is(err, tc.want) {
					t.Fatal("commit:", err)
				}
				if p.dump() != before {
					t.Error("a refused commit changed something")
				}
			})
		})
	}
}

func TestUnconfirmedSleepIsCanceled(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box")
		p.after(time.Hour)
		impatient := settings
		impatient.Confirm = 300 * time.Millisecond
		r, err := sweep.Run(ctx, p.deps(p.store), impatient) // no runner works
		p.must(err)
		equal(t, "sweep", summary(r), "sleep box called-off")
		equal(t, "state", p.field("host:box", "state"), "ready")
		equal(t, "lease", p.field("wake:box", "token"), "")
	})
}

func TestFailedDriverIsReported(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box")
		p.after(time.Hour)
		broken := true
		deps := p.deps(p.store)
		deps.Power = func(*catalog.Catalog) sweep.Power { return brokenPower{switches{p}, &broken} }
		stop := p.living()
		r, err := sweep.Run(ctx, deps, settings)
		p.must(err)
		equal(t, "sweep", summary(r), "sleep box failed")
		equal(t, "failures", r.Failures(), 1)
		broken = false
		r, err = sweep.Run(ctx, deps, settings)
		stop()
		p.must(err)
		equal(t, "next sweep", summary(r), "sleep box done")
		equal(t, "machine", p.on("box"), false)
		equal(t, "token", p.field("host:box", "sleep_token"), "")
	})
}

// brokenPower refuses to turn machines off while it is broken.
type brokenPower struct {
	switches
	broken *bool
}

func (w brokenPower) Sleep(ctx context.Context, host string) error {
	if *w.broken {
		return power.ErrThrottled
	}
	return w.switches.Sleep(ctx, host)
}

// slowPower has a host whose wake takes until another's machine is off.
type slowPower struct {
	switches
	off chan struct{}
}

func (slowPower) Can(string) bool { return true }

func (w slowPower) Wake(ctx context.Context, host string) error {
	select {
	case <-w.off:
		return w.switches.Wake(ctx, host)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w slowPower) Sleep(ctx context.Context, host string) error {
	close(w.off)
	return w.switches.Sleep(ctx, host)
}

// A wake that a driver still works on when the sweep's time is over is no failure.
func TestWakeAtTheEndOfASweepIsUnfinished(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.publish(models + "warm:\n  - {model: paint, schedule: \"* * * * *\", for: 2h}\n")
		deps := p.deps(p.store)
		began := make(chan struct{})
		deps.Power = func(*catalog.Catalog) sweep.Power { return endlessWake{switches{p}, began} }
		ctx, cancel := context.WithCancel(ctx)
		go func() { <-began; cancel() }()
		r, err := sweep.Run(ctx, deps, settings)
		if !errors.Is(err, context.Canceled) {
			t.Error("the sweep is not said to be incomplete:", err)
		}
		equal(t, "sweep", summary(r), "warm far/paint queued, wake far unfinished")
		equal(t, "failures", r.Failures(), 0)
	})
}

// endlessWake has a driver whose wakes end with their context.
type endlessWake struct {
	switches
	began chan struct{}
}

func (endlessWake) Can(string) bool { return true }

func (w endlessWake) Wake(ctx context.Context, _ string) error {
	close(w.began)
	<-ctx.Done()
	return ctx.Err()
}

// counted counts the reads of the whole pool.
type counted struct {
	*state.Store
	reads int
}

func (c *counted) Snapshot(ctx context.Context) (*state.Snapshot, error) {
	c.reads++
	return c.Store.Snapshot(ctx)
}

func TestSlowWakeDelaysNoOtherHost(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.publish(models + "warm:\n  - {model: paint, schedule: \"* * * * *\", for: 2h}\n")
		p.boot("box")
		p.after(time.Hour)
		deps := p.deps(p.store)
		deps.Power = func(*catalog.Catalog) sweep.Power { return slowPower{switches{p}, make(chan struct{})} }
		defer p.living()()
		r, err := sweep.Run(ctx, deps, settings)
		p.must(err)
		equal(t, "sweep", summary(r), "warm far/paint queued, sleep box done, wake far done")
	})
}

func TestDecisionsOfSeveralHostsShareOneRead(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box", "chat")
		p.boot("far", "paint")
		p.after(time.Hour)
		store := &counted{Store: p.store}
		r, err := sweep.Run(ctx, p.deps(store), settings)
		p.must(err)
		equal(t, "sweep", summary(r), "unload box/chat queued, unload far/paint queued")
		equal(t, "reads", store.reads, 6) // one for each step, and what the confirmation looks at
	})
}

func TestConcurrentSweepsDoNotConflict(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box", "chat", "embed")
		for round := 0; p.on("box"); round++ {
			if round > 20 {
				t.Fatal("the host never sleeps")
			}
			p.after(3 * time.Hour)
			stop := p.living()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if _, err := sweep.Run(ctx, p.deps(p.store), settings); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			stop()
		}
		equal(t, "calls of the driver", p.sleeps, 1)
		equal(t, "state", p.field("host:box", "state"), "asleep")
	})
}

func TestScheduledModelIsLoaded(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.publish(models + "warm:\n  - {model: chat, schedule: \"0 8 * * 1-5\", for: 2h}\n")
		equal(t, "at 7", summary(p.sweep(settings)), "")
		p.after(time.Hour + time.Minute)
		equal(t, "after 8", summary(p.sweep(settings)), "warm box/chat queued, wake box done")
		p.work()
		equal(t, "soon after", summary(p.sweep(settings)), "")
		p.after(time.Hour + 45*time.Minute)
		equal(t, "idle, but planned", summary(p.sweep(settings)), "")
		p.after(20 * time.Minute)
		equal(t, "after 10", summary(p.sweepAlone(settings)), "unload box/chat queued")
		equal(t, "wakes", p.wakes, 1)
	})
}

// A scheduled load goes where a model is about to be unloaded, and wakes no other host: neither the unload, queued or
// in progress, nor a pull of weights is a load that it would have to wait for.
func TestScheduledModelTakesAFreedSlot(t *testing.T) {
	const two = `
models:
  chat: {type: llm, recipe: standin, device: cpu}
  talk: {type: llm, recipe: standin, device: cpu}
  embed: {type: embedding, recipe: standin, device: cpu}
hosts:
  box: {driver: local, devices: [cpu]}
  spare: {driver: local, devices: [cpu]}
warm:
  - {model: talk, schedule: "* * * * *", for: 1h}
`
	for name, prepare := range map[string]func(*pool){
		"the unload is queued": func(*pool) {}, // by the sweep itself
		"the unload is under way": func(p *pool) {
			gen := p.boxes["box"].gen
			got, err := p.store.Acquire(ctx, state.Want{Gateway: "g", Model: "chat", Unload: true, Host: "box", Revision: p.revision("box", "chat"), Unattended: true})
			p.must(err)
			p.must(p.store.Begin(ctx, "box", gen, got.Ticket, state.NPUSeat{}))
			p.must(p.store.PutModels(ctx, "box", gen, []state.ModelPut{{ID: "chat", Fields: map[string]string{"type": "llm", "state": "draining"}}}))
		},
		"weights are pulled": func(p *pool) {
			for _, m := range []string{"chat", "embed", "talk"} {
				_, err := p.store.Acquire(ctx, state.Want{Gateway: "g", Model: m, Host: "box", Revision: p.revision("box", m), OwnTicket: true, Unattended: true, Fields: map[string]string{"pull_only": "1"}})
				p.must(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, p *pool) {
				p.publish(two)
				p.boot("box", "chat")
				p.after(time.Hour)
				prepare(p)
				r, err := sweep.Run(ctx, p.deps(p.store), settings)
				p.must(err)
				if got := summary(r); !strings.HasSuffix(got, "warm box/talk queued") {
					t.Errorf("the sweep did %q, want it to end with talk queued on box", got)
				}
				equal(t, "wakes", p.wakes, 0)
			})
		})
	}
}

// refusesLoads is a store that fails when a load is queued.
type refusesLoads struct{ *state.Store }

func (refusesLoads) Acquire(context.Context, state.Want) (state.Acquired, error) {
	return state.Acquired{}, errors.New("no")
}

// A scheduled load that fails keeps no machine running, and a host that one is about to use is not put to sleep.
func TestHostsSleepBeforeScheduledLoads(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box")
		p.after(time.Hour)
		p.publish(models + "warm:\n  - {model: chat, schedule: \"* * * * *\", for: 2h}\n")
		equal(t, "the host that the load will use", summary(p.sweepAlone(settings)), "warm box/chat queued")
		p.work()
		equal(t, "sleeps", p.sleeps, 0)
	})
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box")
		p.after(time.Hour)
		p.publish(models + "warm:\n  - {model: paint, schedule: \"* * * * *\", for: 2h}\n")
		deps := p.deps(refusesLoads{p.store})
		deps.Power = func(*catalog.Catalog) sweep.Power { return anyHost{switches{p}} }
		defer p.living()()
		r, err := sweep.Run(ctx, deps, settings)
		if err == nil {
			t.Error("the failed load is not reported")
		}
		equal(t, "another host", summary(r), "sleep box done")
	})
}

// anyHost can turn every host on and off.
type anyHost struct{ switches }

func (anyHost) Can(string) bool { return true }

func TestScheduledModelWithoutCapacityIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.publish(models + "warm:\n  - {model: chat, schedule: \"* * * * *\", for: 2h}\n")
		p.refuse = fmt.Errorf("%w: none in this zone", power.ErrNoCapacity)
		equal(t, "no capacity", summary(p.sweep(settings)), "warm box/chat queued, wake box failed")
		equal(t, "state", p.field("host:box", "state"), "asleep")
		equal(t, "the host is left alone for a while", summary(p.sweep(settings)), "warm /chat refused")
		p.refuse = nil
		p.after(3 * time.Minute)
		equal(t, "later", summary(p.sweep(settings)), "warm box/chat queued, wake box done")
	})
}

func TestSweepFailsWithoutItsStore(t *testing.T) {
	s, err := state.Open(state.Options{URL: "redis://127.0.0.1:1", Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := sweep.Run(ctx, sweep.Deps{Store: s}, settings); !errors.Is(err, state.ErrUnavailable) {
		t.Error("sweep:", err)
	}
}

// TestReportListsActionsAndHosts: the hosts as a table, and the pool's figures as CloudWatch reads them from a log.
func TestReportListsActionsAndHosts(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		p.boot("box", "chat")
		p.after(time.Minute)
		r := p.sweep(settings)
		var table, line bytes.Buffer
		p.must(r.Table(&table))
		for _, row := range []string{"box   ready   1       0          0", "far   asleep  0       0          0"} {
			if !strings.Contains(table.String(), row) {
				t.Errorf("no row %q in\n%s", row, table.String())
			}
		}
		p.must(r.WriteMetrics(&line))
		var flat map[string]any
		var doc struct {
			AWS struct {
				Timestamp         int64
				CloudWatchMetrics []struct {
					Namespace  string
					Dimensions [][]string
					Metrics    []struct{ Name, Unit string }
				}
			} `json:"_aws"`
		}
		p.must(json.Unmarshal(line.Bytes(), &flat))
		p.must(json.Unmarshal(line.Bytes(), &doc))
		for name, want := range map[string]any{"Pool": "main", "Hosts": 2.0, "HostsReady": 1.0, "Models": 1.0, "Queued": 0.0} {
			equal(t, name, flat[name], want)
		}
		equal(t, "timestamp", doc.AWS.Timestamp, p.clock.Load())
		of := doc.AWS.CloudWatchMetrics[0]
		equal(t, "namespace and dimensions", fmt.Sprint(of.Namespace, of.Dimensions), "Reveille[[Pool]]")
		equal(t, "metrics, each of which costs", fmt.Sprint(of.Metrics), "[{Queued Count}]")
		for _, m := range of.Metrics {
			if _, ok := flat[m.Name].(float64); !ok {
				t.Errorf("metric %s is not a number in %s", m.Name, line.String())
			}
		}
	})
}
