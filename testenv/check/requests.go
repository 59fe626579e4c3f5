package check

import (
	"slices"
	"time"
)

// request looks at what becomes of a request.
func (c *Checker) request(e Event) {
	if e.Kind == Ask {
		r := &request{
			gateway: e.Gateway, model: e.Model, asked: e.At, deadline: e.At + e.For,
			background: e.Text != "", explicit: e.Text == "explicit", onlyLoaded: e.Text == "loaded", priority: e.Value,
		}
		if c.requests[e.Request] != nil {
			c.broken(13, "request %s came twice", e.Request)
		}
		c.requests[e.Request] = r
		switch w := c.want(r.model); {
		case r.onlyLoaded:
		case r.explicit:
			if w.explicit++; w.explicit == 1 {
				w.since = e.At
			}
		case r.background:
			w.background++
		default:
			w.waiting[e.Request] = true
		}
		return
	}
	r := c.requests[e.Request]
	if r == nil {
		return
	}
	switch e.Kind {
	case Granted:
		r.host, r.ticket = e.Host, e.Ticket
		c.unwant(e.Request, r)
	case Refused:
		c.refused(r, e)
		for _, en := range c.alive(e.Host, func(o *engine) bool { return o.model == r.model }) {
			en.closed = true
		}
		c.wantAgain(e.Request, r)
	case Enter:
		c.enter(r, e)
	case SentBack:
		if en := c.engines[r.pid]; en != nil {
			delete(en.queue, e.Request)
			if r.open {
				delete(en.open, e.Request)
				en.lastUse = e.At
			}
		}
		r.deadline += e.At - r.entered
		r.open, r.pid = false, 0
		c.wantAgain(e.Request, r)
	case Repeat:
		c.repeat(r, e)
		c.wantAgain(e.Request, r)
	case Turn:
		c.turn(r, e)
	case Bytes:
		r.answered = true
	case Cut:
		r.cut = true
		if h := c.host(r.host); !r.onlyLoaded && c.Calm() && h.up && !h.stops && !h.unloaded(r.model, e.At) {
			c.broken(3, "host %s cuts request %s to %s, which nobody asked to be unloaded", r.host, e.Request, r.model)
		}
	case End:
		en := c.engines[r.pid]
		if en != nil {
			delete(en.queue, e.Request)
		}
		if r.onlyLoaded {
			return
		}
		if !r.open || en == nil || !en.open[e.Request] {
			c.broken(22, "request %s ended that was not open", e.Request)
			return
		}
		r.open, en.lastUse = false, e.At
		delete(en.open, e.Request)
	case Outcome:
		if !r.explicit {
			c.outcome(r, e)
		} else if w := c.want(r.model); e.Text == "ok" {
			w.explicit, w.last = w.explicit-1, e.At
		}
	}
}

func (c *Checker) wantAgain(id string, r *request) {
	if !r.onlyLoaded {
		c.want(r.model).waiting[id] = true
	}
}

// oldestEvery is how often an engine's turn goes to the request that has waited longest, whatever its priority.
const oldestEvery = 8

// turn looks at who was computed while a request waited at its engine.
func (c *Checker) turn(r *request, e Event) {
	en := c.engines[r.pid]
	if en == nil {
		return
	}
	delete(en.queue, e.Request)
	all, lower := 0, 0
	for _, t := range en.turns {
		if t.at <= r.entered || t.at == e.At {
			continue
		}
		if all++; t.priority > r.priority {
			lower++
		}
	}
	if all > 0 {
		c.judge(31)
	}
	if lower > all/oldestEvery+1 {
		c.broken(31, "%d of %d requests that were computed before request %s have a lower priority", lower, all, e.Request)
	}
	if all > oldestEvery*(r.ahead+1) {
		c.broken(31, "%d requests were computed before request %s, which %d preceded", all, e.Request, r.ahead-1)
	}
	if len(en.queue) == 0 {
		en.turns = en.turns[:0]
	}
	en.turns = append(en.turns, turn{e.At, r.priority})
}

// refused looks at a request that a host did not take although it had been told that its model is loaded there for it.
func (c *Checker) refused(r *request, e Event) {
	g := grant{r.ticket, r.gateway, e.Host}
	first := r.ticket != "" && !c.paid[g]
	c.paid[g] = true
	if !first || !c.Calm() {
		return
	}
	c.judge(8)
	if e.Text != "not_loaded" {
		return
	}
	h := c.host(e.Host)
	if h.unloaded(r.model, e.At) {
		return
	}
	var last *engine
	for _, en := range c.engines {
		// One that is being spawned was promised to nobody.
		if en.host == e.Host && en.model == r.model && en.state != spawning && (last == nil || en.pid > last.pid) {
			last = en
		}
	}
	if last == nil || last.died || !h.up {
		return
	}
	c.broken(8, "host %s refuses request %s, for whose ticket %s it loaded %s", e.Host, e.Request, r.ticket, r.model)
}

// enter looks at a request that is let to an engine.
func (c *Checker) enter(r *request, e Event) {
	en := c.engines[e.PID]
	switch {
	case r.pid != 0:
		c.broken(23, "request %s reaches process %d after process %d", e.Request, e.PID, r.pid)
	case en == nil:
		c.broken(7, "request %s reaches process %d, which is unknown", e.Request, e.PID)
		return
	case en.model != r.model:
		c.broken(7, "request %s for %s reaches %s", e.Request, r.model, en.model)
	case en.state == spawning, en.state == stopping, en.state == gone && !en.died && c.host(en.host).up:
		c.broken(7, "request %s reaches %s on %s, which does not serve", e.Request, en.model, en.host)
	}
	c.revived(en, e)
	c.unwant(e.Request, r)
	r.pid, r.entered = e.PID, e.At
	en.queue[e.Request] = r
	r.ahead = len(en.queue)
	if r.onlyLoaded {
		return
	}
	c.heldUp(en, r, e)
	r.open, en.lastUse = true, e.At
	en.open[e.Request] = true
	g := grant{r.ticket, r.gateway, en.host}
	if r.ticket != "" && !c.paid[g] && c.Calm() {
		c.judge(8)
	}
	c.paid[g] = true
}

// revived looks whether the load under way needs the place of the model that takes a request: it was chosen as a victim
// when that load started, since it has the only place.
func (c *Checker) revived(en *engine, e Event) {
	if e.View == nil || e.View.Loading == "" || e.View.Loading == en.model {
		return
	}
	c.judge(7)
	me, loading := c.world.Models[en.model], c.world.Models[e.View.Loading]
	slot := me.Type == loading.Type && c.world.Limits[en.host].Of(me.Type) == 1
	if slot || me.NPU && loading.NPU {
		c.broken(7, "host %s lets request %s to %s while %s is being loaded in its place", en.host, e.Request, en.model, e.View.Loading)
	}
}

// heldUp looks for a load that has headed its queue for long enough and whose only victim takes a new request. A load that
// needs the NPU as well, or memory of a budget, is left out: it may wait for a second model or behind a load of another type, and leaves an idle
// victim open meanwhile.
func (c *Checker) heldUp(en *engine, r *request, e Event) {
	h := c.host(en.host)
	ty := c.typeOf(en.model)
	head, waits := h.heads[string(ty)]
	owed := r.ticket != "" && !c.paid[grant{r.ticket, r.gateway, en.host}]
	if !waits || owed || c.world.Models[head.model].NPU || c.world.Budgets[en.host] > 0 && c.world.Models[head.model].Memory > 0 || c.world.Limits[en.host].Of(ty) != 1 || !c.Calm() {
		return
	}
	c.judge(15)
	if d := e.At - head.since; d > c.world.FairAfter+2*time.Second {
		c.broken(15, "host %s lets request %s to %s, whose place ticket %s has headed the queue for %v for", en.host, e.Request, en.model, head.ticket, d)
	}
}

// Outcomes that are right at any time, and those that need a cause.
var (
	always  = []string{"ok", "left", "reset", "cut", "engine_crashed"}
	ofLoads = []string{"model_load_error", "load_timeout", "model_file_not_found", "model_backoff", "engine_out_of_memory"}
	ofTime  = []string{"model_loading", "model_busy", "queue_timeout"}
)

// outcome looks at what a request got.
func (c *Checker) outcome(r *request, e Event) {
	if r.outcome != "" {
		c.broken(13, "request %s got %q after %q", e.Request, e.Text, r.outcome)
		return
	}
	r.outcome = e.Text
	c.unwant(e.Request, r)
	if slices.Contains(ofTime, e.Text) {
		c.want(r.model).background++ // the load goes on
	}
	if r.open {
		c.broken(22, "request %s got %q and is open", e.Request, e.Text)
	}
	if late := e.At - r.deadline; r.pid == 0 && late > time.Second {
		c.broken(13, "request %s got %q %v after its time", e.Request, e.Text, late)
	}
	if e.Text == "model_too_large" {
		c.judge(27)
		for host := range c.world.Limits {
			if h := c.host(host); !c.world.Catalogue[host] && (!h.up || h.stops || !h.registered) {
				continue // the pool may not know it
			}
			if budget := c.world.Budgets[host]; budget == 0 || c.world.Models[r.model].Memory <= budget {
				c.broken(27, "request %s for %s got %q, host %s could hold it", e.Request, r.model, e.Text, host)
			}
		}
		return
	}
	if !c.Calm() || r.background {
		return
	}
	c.judge(13)
	c.notRepeated(r, e)
	if slices.Contains(always, e.Text) {
		return
	}
	failed, once := c.failed[r.model]
	switch {
	case slices.Contains(ofLoads, e.Text) && once && e.At-failed < 15*time.Minute:
	case slices.Contains(ofTime, e.Text) && e.At >= r.deadline-50*time.Millisecond:
	case e.Text == "model_busy" && once && e.At-failed < c.world.Clear+c.world.FairAfter+5*time.Second:
	case e.Text == "no_capacity" && e.At-c.unwoken < noCapacityFor:
	case e.Text == "slots_pinned" || e.Text == "slots_pinned_error":
	default:
		c.broken(13, "request %s for %s got %q, for which there is no cause", e.Request, r.model, e.Text)
	}
}
