package sim

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"reveille/gateway/scheduling"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
	"reveille/runner/engine"
	"reveille/testenv/check"
)

// settle is how long a pool may take to be as before after a fault: a lease, what a host is lost after, and some.
const settle = 45 * time.Second

// settle is how long its pool may take: the machines of a group may have to be replaced as well, after a host without its
// machine is given up.
func (s Scenario) settle() time.Duration {
	if s.Group {
		return settle + s.wakeLimit() + s.Copies.Wake
	}
	return settle
}

// operations carry out the steps. They do not wait.
var operations = map[Op]func(*world, Step){
	Rest:    func(*world, Step) {},
	Request: (*world).come,
	Start: func(w *world, s Step) {
		if l := w.gateway(s.Gateway).current(); l != nil {
			model := modelNames[s.Model-1]
			w.record(check.Event{Kind: check.Ask, Request: "background " + w.serial("background"), Gateway: l.id, Model: model, Text: "background"})
			_, _ = l.gate.Enter(scheduling.WaitRequest{Model: model, DontWait: true})
		}
	},
	Unload: (*world).unload,
	Idle:   (*world).idle,
	Reload: (*world).reload,
	Edit:   (*world).edit,
	Die: func(w *world, s Step) {
		if l := w.host(s.Host).current(); l != nil {
			if f := l.engines.of(modelNames[s.Model-1]); f != nil {
				f.die()
			}
		}
	},
	Fail: func(w *world, s Step) {
		w.orders.add(w.scenario.hostName(s.Host), modelNames[s.Model-1], s.N, errStart)
	},
	Missing: func(w *world, s Step) {
		w.orders.add(w.scenario.hostName(s.Host), modelNames[s.Model-1], s.N, &engine.LoadError{Kind: engine.ErrFileNotFound})
	},
	Crash:     func(w *world, s Step) { w.restart(s, 0, w.host(s.Host).crash, w.host(s.Host).startAfter) },
	Stop:      func(w *world, s Step) { w.restart(s, drainTimeout, w.host(s.Host).stop, w.host(s.Host).startAfter) },
	GateCrash: func(w *world, s Step) { w.restart(s, 0, w.gateway(s.Gateway).crash, w.gateway(s.Gateway).startAfter) },
	GateStop:  func(w *world, s Step) { w.restart(s, 0, w.gateway(s.Gateway).stop, w.gateway(s.Gateway).startAfter) },
	Cut:       func(w *world, s Step) { w.trouble(s, func(l *link) { l.sever(true) }) },
	Stall:     func(w *world, s Step) { w.trouble(s, (*link).stall) },
	Lose: func(w *world, s Step) {
		w.disturb(settle, "lose")
		if l := w.linkOf(s); l != nil {
			l.loseReplies(s.N, s.Skip)
		}
	},
	Garble: func(w *world, s Step) {
		if l := w.linkOf(s); l != nil {
			l.garble()
		}
	},
	Slow: func(w *world, s Step) {
		if l := w.gateway(s.Gateway).current(); l != nil {
			w.disturb(settle, "slow")
			l.link.mu.Lock()
			l.link.latency = s.For
			l.link.mu.Unlock()
		}
	},
	Part: func(w *world, s Step) {
		w.during(s, func(on bool) { w.parts[[2]int{s.Gateway, s.Host}] = on })
	},
	Flush: func(w *world, _ Step) {
		w.disturb(settle, "flush")
		w.record(check.Event{Kind: check.Restored})
		w.redis.FlushAll()
		w.scripts.edited()
		w.keys = nil
	},
	Remember: (*world).rememberState,
	Failover: (*world).failover,
	Refuse:   func(w *world, s Step) { w.during(s, func(on bool) { w.refusing = on }) },
	Clock: func(w *world, s Step) {
		w.disturb(max(s.For, -s.For)+settle, "clock")
		w.mu.Lock()
		w.offset += s.For
		w.mu.Unlock()
	},
	NoWake: func(w *world, s Step) {
		if w.group != nil {
			w.group.set(func(g *scalingGroup) { g.refuse += s.N })
			return
		}
		w.host(s.Host).machine.set(func(m *machine) { m.refuse += s.N })
	},
	Deaf: func(w *world, s Step) {
		if w.group != nil {
			w.group.set(func(g *scalingGroup) { g.deaf += s.N })
			return
		}
		w.host(s.Host).machine.set(func(m *machine) { m.deaf += s.N })
	},
	Reclaim: func(w *world, s Step) {
		if w.group != nil {
			w.disturb(spotNotice+w.scenario.settle(), "reclaim")
			w.group.reclaim(w.host(s.Host))
		}
	},
	Ignore: func(w *world, s Step) { w.host(s.Host).machine.set(func(m *machine) { m.ignore += s.N }) },
	Linger: func(w *world, s Step) { w.host(s.Host).machine.set(func(m *machine) { m.linger = s.For }) },
	Sleep:  (*world).sleep,
	Wake: func(w *world, s Step) {
		if l := w.gateway(s.Gateway).current(); l != nil {
			w.work.Go(func() { _ = l.gate.WakeHost(context.Background(), w.scenario.hostName(s.Host)) })
		}
	},
	SweepEnd: func(w *world, s Step) {
		if s.N != 0 { // its leases of hosts' power end by themselves
			w.disturb(settle, "sweep-end")
		}
		w.warmer.end(s.N == 0)
	},
	SweepLose: func(w *world, s Step) { w.warmer.lose(s.N, s.Skip) },
	Depart: func(w *world, s Step) {
		if r := w.host(s.Host); r.strange {
			w.disturb(settle, "depart")
			r.machine.set(func(m *machine) { m.power = power.Off })
			r.crash()
			if s.For > 0 {
				time.AfterFunc(s.For, func() { r.booted(true) })
			}
		}
	},
	Mend: func(w *world, _ Step) { w.mend() },
}

// mend ends all that is wrong, but for a clock that jumped, and brings everybody back.
func (w *world) mend() {
	w.record(check.Event{Kind: check.Mended, For: w.scenario.settle()})
	w.mu.Lock()
	w.refusing, w.parts = false, map[[2]int]bool{}
	w.mu.Unlock()
	w.orders.mu.Lock()
	clear(w.orders.fail)
	w.orders.mu.Unlock()
	for _, g := range w.gateways {
		if l := g.current(); l != nil {
			l.link.mu.Lock()
			l.link.latency = 0
			l.link.mu.Unlock()
			l.link.heal()
		}
		g.start()
	}
	if w.group != nil {
		w.group.mend()
	}
	for _, r := range w.runners {
		r.machine.set(func(m *machine) { m.refuse, m.deaf, m.ignore, m.linger = 0, 0, 0, 0 })
		if l := r.current(); l != nil {
			l.link.heal()
		}
		r.startAfter(0)
	}
}

func (w *world) gateway(n int) *gateway { return w.gateways[(n-1+len(w.gateways))%len(w.gateways)] }
func (w *world) host(n int) *runner     { return w.runners[(n-1+len(w.runners))%len(w.runners)] }

func (w *world) come(s Step) {
	for range max(s.N, 1) {
		w.request(w.gateway(s.Gateway), modelNames[s.Model-1], s)
	}
}

// linkOf is the way to Redis of the step's gateway or host, nil when it is down.
func (w *world) linkOf(s Step) *link {
	if s.Host > 0 {
		if l := w.host(s.Host).current(); l != nil {
			return l.link
		}
		return nil
	}
	if l := w.gateway(s.Gateway).current(); l != nil {
		return l.link
	}
	return nil
}

// restart ends a process and brings it back after the step's time; ending takes at most as long as given.
func (w *world) restart(s Step, ending time.Duration, end func(), startAfter func(time.Duration)) {
	w.disturb(ending+s.For+settle, string(s.Op))
	end()
	startAfter(s.For)
}

// during switches something on for the step's time.
func (w *world) during(s Step, set func(on bool)) {
	w.disturb(s.For+settle, string(s.Op))
	locked := func(on bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		set(on)
	}
	locked(true)
	time.AfterFunc(s.For, func() { locked(false) })
}

func (w *world) trouble(s Step, do func(*link)) {
	w.disturb(s.For+settle, string(s.Op))
	if l := w.linkOf(s); l != nil {
		do(l)
		time.AfterFunc(s.For, l.heal)
	}
}

// sleep asks a gateway to put a host to sleep, which unloads its models first.
func (w *world) sleep(s Step) {
	l, r := w.gateway(s.Gateway).current(), w.host(s.Host)
	if l == nil || r.strange {
		return
	}
	for _, m := range w.account(r).Residents {
		w.record(check.Event{Kind: check.Unload, Host: r.name, Model: m.Model})
	}
	w.work.Go(func() { _ = l.gate.SleepHost(context.Background(), r.name, s.N > 0) })
}

// unload asks a gateway to unload a model everywhere.
func (w *world) unload(s Step) {
	l := w.gateway(s.Gateway).current()
	if l == nil {
		return
	}
	model := modelNames[s.Model-1]
	for _, r := range w.runners {
		w.record(check.Event{Kind: check.Unload, Host: r.name, Model: model})
	}
	w.work.Go(func() { _, _ = l.gate.Unload(context.Background(), model, s.N > 0) })
}

// idle does what a sweep does about a model that was not used for long.
func (w *world) idle(s Step) {
	model := modelNames[s.Model-1]
	w.work.Go(func() {
		ctx := context.Background()
		snap, err := w.operator.Snapshot(ctx)
		if err != nil {
			return
		}
		for _, r := range w.runners {
			h := snap.Hosts[r.name]
			if h == nil || h.State != policy.Ready || h.Models[model] == nil || h.Models[model].State != "loaded" {
				continue
			}
			w.record(check.Event{Kind: check.Unload, Host: r.name, Model: model, For: s.For})
			_, _ = w.operator.Acquire(ctx, state.Want{
				Gateway: "sweep", Model: model, Unload: true, Host: r.name, Revision: snap.RevisionOf(r.name, ""), Unattended: true,
				Fields: map[string]string{"only_idle_ms": strconv.FormatInt(s.For.Milliseconds(), 10)},
			})
			return
		}
	})
}

// reload asks a gateway to load a model with options of its own.
func (w *world) reload(s Step) {
	l := w.gateway(s.Gateway).current()
	if l == nil {
		return
	}
	model := modelNames[s.Model-1]
	id := "reload " + w.serial("reload")
	w.record(check.Event{Kind: check.Ask, Request: id, Gateway: l.id, Model: model, Text: "explicit"})
	options, _ := json.Marshal(map[string]int{"ctx_size": 1024 * (1 + s.N)})
	w.work.Go(func() {
		if _, _, err := l.gate.Load(context.Background(), scheduling.LoadRequest{Model: model, Options: options, Wait: true}); err == nil {
			w.record(check.Event{Kind: check.Outcome, Request: id, Model: model, Text: "ok"})
		}
	})
}

// edit changes a model's entry. Gateways have it at once, and publish it.
func (w *world) edit(s Step) {
	model := modelNames[s.Model-1]
	w.record(check.Event{Kind: check.Edited, Model: model})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.edits[model]++
	c, err := makeCatalog(w.scenario, w.edits)
	if err != nil {
		panic(err) // the text is made here
	}
	w.catalog = c
}

// rememberState is what a replica holds from now on.
func (w *world) rememberState(Step) {
	w.redis.DB(1).FlushDB()
	for _, k := range w.redis.Keys() {
		_ = w.redis.Copy(0, k, 1, k)
	}
	w.mu.Lock()
	w.remember = true
	w.mu.Unlock()
}

// failover puts the replica's state in place.
func (w *world) failover(Step) {
	w.mu.Lock()
	there := w.remember
	w.mu.Unlock()
	if !there {
		return
	}
	w.disturb(settle, "failover")
	w.record(check.Event{Kind: check.Restored})
	w.redis.DB(0).FlushDB()
	for _, k := range w.redis.DB(1).Keys() {
		_ = w.redis.Copy(1, k, 0, k)
	}
	w.scripts.edited()
	w.keys = nil
	for _, g := range w.gateways {
		if l := g.current(); l != nil {
			l.link.sever(false)
		}
	}
	for _, r := range w.runners {
		if l := r.current(); l != nil {
			l.link.sever(false)
		}
	}
	w.opLink.sever(false)
}
