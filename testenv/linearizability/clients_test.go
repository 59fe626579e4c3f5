package linearizability

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// The clients do what gateways, runners and sweeps do, in any order, and now and then what one does that has been
// asleep: use a number that is old.

var modelNames = []string{"m1", "m2", "m3", "m4"}

func pick[T any](c *client, from []T) T { return from[c.IntN(len(from))] }

func (c *client) chance(percent int) bool { return c.IntN(100) < percent }

// gateway asks for models, waits for tickets, and wakes the host when that is its duty.
type gateway struct {
	*client
	shy       bool // asks seldom
	asked     int
	last      acquire // the last one, to be made again
	unheard   bool    // no reply to it came
	revisions []uint64
	waits     []uint64
	duties    []uint64 // tokens, some of which ended
}

func (g *gateway) turn() {
	if g.shy && g.chance(90) {
		time.Sleep(time.Millisecond)
		return
	}
	switch n := g.IntN(100); {
	case g.unheard && n < 50, g.asked > 0 && n < 4:
		g.acquire(g.last)
	case len(g.duties) > 0 && n < 35:
		g.wake()
	case n < 50:
		g.ask()
	case n < 80 && len(g.waits) > 0:
		g.renew(pick(g.client, g.waits))
	case n < 90 && len(g.waits) > 0:
		id := pick(g.client, g.waits)
		if _, ok := g.do(leave{g.name, id, g.chance(20)}); ok && g.chance(80) {
			g.forget(id)
		}
	case n < 95:
		got, _ := g.do(claim{g.name, g.chance(30)})
		g.given(got.fence)
	}
}

func (g *gateway) ask() {
	snap, ok := g.do(snapshot{})
	if !ok {
		return
	}
	g.revisions = append(g.revisions, snap.revision)
	g.asked++
	revision := snap.revision
	if g.chance(10) {
		revision = pick(g.client, g.revisions)
	}
	g.acquire(acquire{g.name, pick(g.client, modelNames), revision, g.chance(15), fmt.Sprint(g.name, "-", g.asked)})
}

func (g *gateway) acquire(a acquire) {
	got, ok := g.do(a)
	g.last, g.unheard = a, !ok
	if got.ticket != 0 && !slices.Contains(g.waits, got.ticket) {
		g.waits = append(g.waits, got.ticket)
	}
	g.given(got.fence)
}

func (g *gateway) renew(id uint64) {
	got, ok := g.do(renew{g.name, id})
	if ok && !pending(got.state) && g.chance(80) {
		g.forget(id)
	}
	g.given(got.fence)
}

func (g *gateway) forget(id uint64) {
	g.waits = slices.DeleteFunc(g.waits, func(w uint64) bool { return w == id })
}

func (g *gateway) given(token uint64) {
	if token != 0 {
		g.duties = append(g.duties, token)
	}
}

// wake keeps or ends the newest duty, or an older one, which must have no effect.
func (g *gateway) wake() {
	newest := len(g.duties) - 1
	token := g.duties[newest]
	if g.chance(30) {
		token = pick(g.client, g.duties)
	}
	got, ok := g.do(wake{token, pick(g.client, []string{"renew", "renew", "failed", "overdue", "leave"})})
	if ok && got.verdict == "awake" && g.chance(60) {
		g.duties = g.duties[:newest]
	}
}

// runner holds models in the host's slots and carries tickets out. Two of them contend for the host, as one that was
// paused and its successor do.
type runner struct {
	*client
	shy        bool  // stays off for long
	until      int64 // does so
	boot       int
	known      uint64            // generation of its last life
	generation uint64            // 0 off
	holds      map[string]string // state by model: the processes that it has
	loading    uint64
	stale      bool // Redis may lack something: nothing is written before the next registration
	refusals   int  // writes that were refused since another took the host
}

func (r *runner) turn() {
	switch n := r.IntN(100); {
	case r.clock.now() < r.until:
		time.Sleep(time.Millisecond)
	case r.generation == 0: // its machine is off, or boots
		if r.chance(10) {
			r.register()
		}
	case n < 2, r.refusals > 8 && n < 50: // killed, its engines with it
		r.off()
	case r.stale && n < 70, r.refusals > 8:
		r.register()
	case n < 20:
		r.heard(r.do(beat{r.generation}))
	case n < 26:
		r.tell(pick(r.client, []string{"draining", "ready", "asleep", "asleep"}))
	case r.stale:
	case n < 65 && r.loading != 0:
		r.conclude()
	case n < 72 && len(r.holds) > 0:
		r.evict()
	default:
		r.look()
	}
}

// off ends the runner. Its successor knows the generation from the disk, and holds nothing.
func (r *runner) off() {
	r.boot++
	if r.shy {
		r.until = r.clock.now() + 150_000
	}
	r.known = max(r.known, r.generation)
	r.holds, r.loading, r.generation, r.refusals = map[string]string{}, 0, 0, 0
}

// heard reads the response to a write.
func (r *runner) heard(got answer, ok bool) bool {
	switch {
	case !ok:
		r.stale = true
	case got.verdict == "unknown":
		r.stale = true
	case got.verdict == "fenced":
		r.refusals++
	}
	return ok && got.verdict == "ok"
}

func (r *runner) register() {
	got, ok := r.do(register{fmt.Sprint(r.name, "-", r.boot), max(r.known, r.generation), list(r.holds), r.loading})
	r.stale = !ok || got.verdict != "ok"
	if !r.stale {
		r.generation, r.refusals = got.fence, 0
	}
}

func (r *runner) tell(st string) {
	if r.heard(r.do(tell{r.generation, st})) && st == "asleep" {
		r.off()
	}
}

// look reads the queue: it begins a load, or confirms a sleep, or finds that Redis holds other models for it than it has.
func (r *runner) look() {
	snap, ok := r.do(snapshot{})
	if !ok {
		return
	}
	if snap.generation == r.generation && snap.records != list(r.holds) {
		r.stale = true
		return
	}
	if snap.sleep != 0 && (len(r.holds) == 0 && r.loading == 0 || r.chance(15)) {
		r.heard(r.do(confirmSleep{r.generation, snap.sleep}))
		return
	}
	if len(snap.queue) == 0 {
		if len(r.holds) > 0 {
			r.evict()
		}
		return
	}
	id := snap.queue[0]
	if r.loading != 0 || r.chance(10) {
		id = pick(r.client, snap.queue)
	}
	if !r.heard(r.do(begin{r.generation, id})) || r.loading != 0 {
		return
	}
	r.loading = id
	model := pick(r.client, modelNames)
	for len(r.holds) >= slots && r.holds[model] == "" {
		if !r.evict() {
			return
		}
	}
	r.put(model, "loading")
}

// put takes a slot, or writes what became of the model in it.
func (r *runner) put(model, st string) {
	r.holds[model] = st
	r.heard(r.do(put{r.generation, model, st}))
}

// evict frees a slot, and reports whether Redis heard of it.
func (r *runner) evict() bool {
	model := pick(r.client, slices.Sorted(maps.Keys(r.holds)))
	delete(r.holds, model)
	return r.heard(r.do(drop{r.generation, model}))
}

// conclude ends the load under way.
func (r *runner) conclude() {
	for _, m := range slices.Sorted(maps.Keys(r.holds)) {
		if r.holds[m] == "loading" && !r.stale {
			r.put(m, "loaded")
		}
	}
	if !r.stale && r.heard(r.do(finish{r.generation, r.loading, r.chance(20)})) || r.chance(30) {
		r.loading = 0
	}
}

// sweep puts hosts to sleep, repairs, and moves the clock.
type sweep struct{ *client }

func (s *sweep) turn() {
	who := fmt.Sprint(s.name, "-", s.IntN(2)) // of two
	if s.chance(12) {
		s.clock.jump(time.Duration(s.IntN(7_000)) * time.Millisecond)
	}
	if s.chance(5) {
		s.clock.jump(16 * time.Second)
	}
	switch n := s.IntN(100); {
	case n < 10:
		s.do(markLost{})
	case n < 15:
		s.do(claim{who, false})
	case n < 18:
		s.do(forget{s.chance(30)})
	default:
		snap, ok := s.do(snapshot{})
		switch {
		case !ok:
		case len(snap.queue) == 0 && (snap.state == "lost" || snap.state == "waking") && s.chance(60):
			s.do(giveUp{map[string]string{"lost": "unseen", "waking": "stranded"}[snap.state]})
		case len(snap.queue) == 0 && (snap.state == "lost" || snap.state == "asleep") && s.chance(15):
			s.do(forget{s.chance(30)})
		case snap.sleep != 0:
			s.do(stop{who, snap.sleep, pick(s.client, []string{"cancel", "stop", "stop", "hold", "done", "failed", "leave"})})
		case snap.state == "ready" && snap.records == "" || s.chance(30):
			s.do(commitSleep{who, snap.revision, snap.active})
		}
	}
}
