package linearizability

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"reveille/infra/state"
)

// register: a runner takes over the host's records.
type register struct {
	Boot    string
	Known   uint64 // highest generation that the runner knows of
	Models  string // as list has them
	Loading uint64
}

func (r register) call(ctx context.Context, s *state.Store) (answer, error) {
	info := state.HostInfo{Name: host, Addr: host + ":9000", Boot: r.Boot, Generation: r.Known, Loading: id(r.Loading)}
	for m, st := range models(r.Models) {
		info.Models = append(info.Models, modelPut(m, st))
	}
	generation, _, err := s.Register(ctx, info)
	out, err := verdict(err)
	out.fence = generation
	return out, err
}

func (r register) apply(p *pool, at moment) answer {
	if p.goesOff(at) && p.boot == r.Boot {
		return answer{verdict: "stopping"}
	}
	p.boot, p.stopping, p.left, p.woken, p.failed, p.listed = r.Boot, false, 0, 0, 0, true
	p.records = models(r.Models)
	p.requeue(r.Loading)
	p.state, p.generation, p.power, p.sleep, p.noticed, p.seen = "ready", draw(at, 0), lease{}, 0, 0, at.now
	if t := p.ticket(r.Loading); t != nil && pending(t.state) {
		p.dequeue(t.id)
		p.loading, t.state = t.id, "loading"
	}
	p.restored = false
	p.changed(at)
	return answer{verdict: "ok", fence: p.generation}
}

// beat: a runner says that it lives.
type beat struct{ Generation uint64 }

func (b beat) call(ctx context.Context, s *state.Store) (answer, error) {
	revision, _, err := s.Beat(ctx, host, b.Generation, false, nil)
	out, err := verdict(err)
	if out.verdict == "ok" {
		out.revision = revision
	}
	return out, err
}

func (b beat) apply(p *pool, at moment) answer {
	o := p.owner(b.Generation)
	if o == "ok" && p.state == "waking" && !p.goesOff(at) {
		o = "unknown"
	}
	if o != "ok" {
		return answer{verdict: o}
	}
	p.seen, p.noticed = at.now, 0
	return answer{verdict: "ok", revision: p.revision}
}

// put: a runner writes a record, which takes a slot.
type put struct {
	Generation   uint64
	Model, State string
}

func (r put) call(ctx context.Context, s *state.Store) (answer, error) {
	return verdict(s.PutModels(ctx, host, r.Generation, []state.ModelPut{modelPut(r.Model, r.State)}))
}

func (r put) apply(p *pool, at moment) answer {
	o := p.owner(r.Generation)
	if o == "ok" && !awake(p.state) {
		o = "unknown"
	}
	if o == "ok" {
		p.records[r.Model] = r.State
		p.changed(at)
	}
	return answer{verdict: o}
}

// drop: a runner saw a model's process gone; its slot is free.
type drop struct {
	Generation uint64
	Model      string
}

func (d drop) call(ctx context.Context, s *state.Store) (answer, error) {
	return verdict(s.DropModel(ctx, host, d.Generation, d.Model, "test", true))
}

func (d drop) apply(p *pool, at moment) answer {
	o := p.owner(d.Generation)
	if o == "ok" {
		delete(p.records, d.Model)
		p.changed(at)
	}
	return answer{verdict: o}
}

// tell: a runner drains, takes that back, or leaves in order.
type tell struct {
	Generation uint64
	State      string // ready, draining or asleep
}

func (r tell) call(ctx context.Context, s *state.Store) (answer, error) {
	return verdict(s.SetHostState(ctx, host, r.Generation, r.State))
}

func (r tell) apply(p *pool, at moment) answer {
	o := p.owner(r.Generation)
	switch {
	case o != "ok" || p.state == r.State:
		return answer{verdict: o}
	case !awake(p.state) && r.State == "asleep":
		return answer{verdict: "ok"}
	case !awake(p.state):
		return answer{verdict: "unknown"}
	}
	p.state = r.State
	p.changed(at)
	if r.State == "asleep" {
		p.forget()
		p.dropUnwanted(at)
	}
	return answer{verdict: "ok"}
}

// dropUnwanted ends queued loads that nobody waits for, and reports whether any is left.
func (p *pool) dropUnwanted(at moment) (left bool) {
	for _, id := range slices.Clone(p.queue) {
		if t := p.ticket(id); t.background || t.live(at) > 0 {
			left = true
		} else {
			p.end(t, "dropped")
			p.changed(at)
		}
	}
	return left
}

// markLost: a sweep writes down that the runner is silent.
type markLost struct{}

func (markLost) call(ctx context.Context, s *state.Store) (answer, error) {
	return verdict(s.MarkLost(ctx, host))
}

func (markLost) apply(p *pool, at moment) answer {
	if !awake(p.state) || !p.lost(at) {
		return answer{verdict: "gone"}
	}
	p.forget()
	p.state, p.generation, p.noticed, p.sleep = "lost", 0, 0, 0
	p.changed(at)
	return answer{verdict: "ok"}
}

// snapshot reads the pool in one step.
type snapshot struct{}

func (snapshot) call(ctx context.Context, s *state.Store) (answer, error) {
	snap, err := s.Snapshot(ctx)
	if err != nil {
		return answer{}, err
	}
	out := answer{verdict: "ok", revision: snap.Revision}
	me := snap.Hosts[host]
	if me == nil {
		return out, nil
	}
	records := map[string]string{}
	for m, r := range me.Models {
		records[m] = string(r.State)
	}
	out.state, out.records, out.generation = me.Fields["state"], list(records), me.Generation
	out.sleep, out.active = number(me.Fields["sleep_token"]), me.Fields["active_ms"]
	for _, t := range me.Queue {
		out.queue = append(out.queue, number(t.ID))
		out.rest += describe(t.Model, string(t.State), t.Waiters)
	}
	return out, nil
}

func (snapshot) apply(p *pool, at moment) answer {
	out := answer{verdict: "ok", state: p.state, records: list(p.records), revision: p.revision, generation: p.generation, sleep: p.sleep}
	if p.loading != 0 {
		out.queue = append(out.queue, p.loading)
	}
	out.queue = append(out.queue, p.queue...)
	for _, id := range out.queue {
		t := p.ticket(id)
		waiters := 0
		for _, end := range t.waiters {
			if end >= at.now {
				waiters++
			}
		}
		out.rest += describe(t.model, t.state, waiters)
	}
	return out
}

// describe is a ticket of a queue as a snapshot shows it.
func describe(model, state string, waiters int) string {
	return fmt.Sprintf("%s %s for %d; ", model, state, waiters)
}

// list and models turn records into text, model=state separated by spaces, and back.

func list(records map[string]string) string {
	var out []string
	for _, m := range slices.Sorted(maps.Keys(records)) {
		out = append(out, m+"="+records[m])
	}
	return strings.Join(out, " ")
}

func models(text string) map[string]string {
	out := map[string]string{}
	for item := range strings.FieldsSeq(text) {
		m, st, _ := strings.Cut(item, "=")
		out[m] = st
	}
	return out
}

func modelPut(model, st string) state.ModelPut {
	return state.ModelPut{ID: model, Fields: map[string]string{"type": "llm", "state": st}}
}
