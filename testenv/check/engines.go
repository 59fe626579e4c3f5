package check

import (
	"strconv"
	"time"

	"reveille/infra/policy"
)

// maxOvertaken is how many later loads may go before one.
const maxOvertaken = policy.MaxOvertaken

// leftWithin is how soon the pool knows that a client left.
const leftWithin = 2 * time.Second

// recordsGone is how soon Redis has no record of a process that ended.
const recordsGone = 2 * time.Second

// chosenWithin is how soon an idle victim is stopped once it was chosen.
const chosenWithin = time.Second

// spawn looks at a process that starts.
func (c *Checker) spawn(e Event) {
	m, h := c.world.Models[e.Model], c.host(e.Host)
	en := &engine{host: e.Host, model: e.Model, pid: e.PID, ticket: e.Ticket, open: map[string]bool{}, queue: map[string]*request{}, lastUse: e.At}
	c.judge(4)
	if other := c.alive(e.Host, func(o *engine) bool { return o.state == spawning }); len(other) > 0 {
		c.broken(4, "host %s starts %s while it starts %s", e.Host, e.Model, other[0].model)
	}
	same := c.alive(e.Host, func(o *engine) bool { return c.typeOf(o.model) == m.Type })
	n := c.world.Limits[e.Host].Of(m.Type)
	if n >= 0 {
		c.judge(1)
	}
	if n >= 0 && len(same) >= n {
		c.broken(1, "host %s starts %s beside %d of type %s, the limit is %d", e.Host, e.Model, len(same), m.Type, n)
	}
	if m.NPU {
		c.judge(2)
	}
	if npu := c.alive(e.Host, func(o *engine) bool { return c.world.Models[o.model].NPU }); m.NPU && len(npu) > 0 {
		c.broken(2, "host %s starts %s beside %s on the NPU", e.Host, e.Model, npu[0].model)
	}
	if budget := c.world.Budgets[e.Host]; budget > 0 && m.Memory > 0 {
		c.judge(27)
		held := int64(0)
		for _, o := range c.alive(e.Host, func(*engine) bool { return true }) {
			held += c.world.Models[o.model].Memory
		}
		if held+m.Memory > budget {
			c.broken(27, "host %s starts %s, which needs %d bytes, beside models that hold %d of %d", e.Host, e.Model, m.Memory, held, budget)
		}
		c.cards(en, m, e)
	}
	copies := c.alive("", func(o *engine) bool {
		return o.model == e.Model && !o.closed && o.state != stopping && !c.host(o.host).dismissed(o.model, e.At)
	})
	if c.Calm() {
		c.judge(10)
	}
	if len(copies) >= max(m.Copies, 1) && c.Calm() && !c.reload(e) {
		c.broken(10, "host %s starts %s, which %s has with process %d", e.Host, e.Model, copies[0].host, copies[0].pid)
	}
	// The second try of a load follows from the first: it left the queue while somebody waited.
	w, again := c.want(e.Model), h.attempts[attempt{e.Ticket, e.Model}] > 0
	if !again && e.At >= c.sound {
		c.judge(11)
	}
	began, late := h.beganLoad(e.Model, e.At), c.world.Lease+5*time.Second
	if c.Calm() { // all who left said so
		late = leftWithin
	}
	further := m.Copies > 1 // a load of a further copy goes on without its requests, which are at the others
	if !again && !further && len(w.waiting) == 0 && w.background == 0 && w.explicit == 0 && began > w.last+late && e.At >= c.sound {
		c.broken(11, "host %s starts %s, which nobody has wanted for %v", e.Host, e.Model, e.At-w.last)
	}
	delete(h.onlyIdle, e.Model)
	if h.heads[string(m.Type)].ticket == e.Ticket {
		delete(h.heads, string(m.Type))
	}
	c.attempt(h, e)
	c.order(h, e)
	c.engines[e.PID] = en
}

// reload reports whether a process starts for an explicit load, on a host that had the model when the load was asked for, as
// far as the pool could know: its copy may have died before it was stopped. Another copy, which a fault left, stays.
func (c *Checker) reload(e Event) bool {
	if e.Text != "explicit" {
		return false
	}
	since := c.want(e.Model).since - recordsGone
	for _, en := range c.engines {
		if en.host == e.Host && en.model == e.Model && (en.state != gone || en.exited >= since) {
			return true
		}
	}
	return false
}

// beganLoad is when the load of a model began that is now under way: its victims go first.
func (h *hostLog) beganLoad(model string, now time.Duration) time.Duration {
	if h.loading != model {
		h.loading, h.began = model, now
	}
	return h.began
}

// attempt counts the starts for one ticket.
func (c *Checker) attempt(h *hostLog, e Event) {
	h.failedNow, h.clears = false, ""
	if e.Ticket == "" {
		return
	}
	try := attempt{e.Ticket, e.Model}
	if h.attempts[try]++; h.attempts[try] > 1 {
		c.judge(12)
	}
	switch n := h.attempts[try]; {
	case n > 2:
		c.broken(12, "host %s starts %s for ticket %s for the %dth time", e.Host, e.Model, e.Ticket, n)
	case n == 2 && h.fatal[e.Ticket]:
		c.broken(12, "host %s starts %s again whose file was not found", e.Host, e.Model)
	case n == 2:
		h.failedNow = true
		rest := c.alive(e.Host, func(o *engine) bool { return !c.world.Models[o.model].Pinned })
		if len(rest) > 0 {
			c.broken(12, "host %s tries %s again without having cleared %s", e.Host, e.Model, rest[0].model)
		}
	}
}

// order looks at the loads that this one goes before.
func (c *Checker) order(h *hostLog, e Event) {
	if e.Ticket == "" || e.View == nil || h.attempts[attempt{e.Ticket, e.Model}] != 1 {
		return
	}
	mine := number(e.Ticket)
	for _, t := range e.View.Queue {
		if t.ID == e.Ticket || !t.Load || number(t.ID) >= mine || !t.Wanted {
			continue
		}
		if c.Calm() {
			c.judge(15)
		}
		h.overtaken[t.ID]++
		if n := h.overtaken[t.ID]; n > maxOvertaken+t.Passed && c.Calm() || t.Passed > maxOvertaken {
			c.broken(15, "host %s starts %s before %s, which %d loads have overtaken, %d for their priority", e.Host, e.Model, t.Model, n, t.Passed)
		}
		if c.typeOf(t.Model) != c.typeOf(e.Model) || !c.Calm() {
			continue
		}
		if h.overtakenByType[t.ID]++; h.overtakenByType[t.ID] > t.Passed {
			c.broken(15, "host %s starts %s (ticket %s) before the earlier %s (ticket %s) of its type", e.Host, e.Model, e.Ticket, t.Model, t.ID)
		}
	}
}

func number(ticket string) uint64 {
	n, _ := strconv.ParseUint(ticket, 10, 64)
	return n
}

// engine looks at what becomes of a process.
func (c *Checker) engine(en *engine, e Event) {
	h := c.host(en.host)
	switch e.Kind {
	case Ready:
		en.state, en.lastUse = ready, e.At
		w := c.want(en.model)
		w.background = max(0, w.background-1)
		if len(w.waiting) == 0 {
			w.last = min(w.last, e.At)
		}
	case Failed:
		en.state, en.exited = gone, e.At
		c.failed[en.model] = e.At
		h.clears = en.model
		if e.Text == "file" && en.ticket != "" {
			h.fatal[en.ticket] = true
		}
	case StopBegin:
		if e.View != nil {
			h.beganLoad(e.View.Loading, e.At)
		}
		if c.stop(h, en, e); en.state != gone {
			en.state = stopping
		}
	case Died:
		en.died = true
		c.failed[en.model] = e.At
	case Exit:
		if en.state != gone {
			en.state, en.exited = gone, e.At
		}
	}
}

// stop looks at the choice of a process to stop.
func (c *Checker) stop(h *hostLog, en *engine, e Event) {
	if en.died || en.state == gone || !h.up {
		return
	}
	c.judge(3)
	for id := range en.open {
		if r := c.requests[id]; r != nil && !r.cut {
			c.broken(3, "host %s stops %s under request %s", en.host, en.model, id)
		}
	}
	_, asked := h.unloads[en.model]
	_, edited := h.edits[en.model]
	asked = asked || edited
	loading := e.View != nil && e.View.Loading != ""
	if idle, only := h.onlyIdle[en.model]; only && !asked && !h.stops {
		c.judge(21)
		quiet := e.At - en.lastUse
		if quiet >= idle {
			return
		}
		if !loading {
			c.broken(21, "host %s stops %s as idle %v after its last use, not %v", en.host, en.model, quiet, idle)
		}
	}
	if asked || h.stops || !loading || h.failedNow {
		return
	}
	c.victim(h, en, e)
}

// victim compares the model that goes for another with those that stay: none of them may be idle, evictable and longer
// unused. Where the victim was busy until now the choice was made before, and a resident that was used a moment ago may have been
// busy as well.
func (c *Checker) victim(h *hostLog, en *engine, e Event) {
	loading := c.world.Models[e.View.Loading]
	me := c.world.Models[en.model]
	if loading.Type != me.Type || loading.NPU || me.NPU || e.View.Loading == en.model {
		return
	}
	if h.clears == e.View.Loading {
		return
	}
	var mine Resident
	for _, r := range e.View.Residents {
		if r.PID == en.pid {
			mine = r
		}
	}
	for _, r := range e.View.Residents {
		o := c.world.Models[r.Model]
		if r.PID == en.pid || r.PID == 0 || o.Type != me.Type || o.Pinned || r.InFlight > 0 || r.Reserved || r.State != policy.ModelLoaded {
			continue
		}
		if c.world.Cards[en.host] != nil || loading.Memory > 0 && o.Memory < me.Memory {
			continue // its memory would not have been enough
		}
		c.judge(6)
		longAgo := e.At-r.Used > c.world.Reserve+5*time.Second || c.Calm() && e.At-mine.Used > chosenWithin
		if r.Used < mine.Used && longAgo {
			c.broken(6, "host %s stops %s, used at %v, and keeps the idle %s, used at %v", en.host, en.model, mine.Used, r.Model, r.Used)
		}
	}
}

// cards looks at the GPUs that a process gets: together all that it needs, and none more than it has beside the others.
func (c *Checker) cards(en *engine, m Model, e Event) {
	has := c.world.Cards[e.Host]
	if has == nil {
		return
	}
	en.cards = e.Cards
	sum := int64(0)
	for card, n := range e.Cards {
		sum += n
		held := n
		for _, o := range c.alive(e.Host, func(*engine) bool { return true }) {
			held += o.cards[card]
		}
		if held > has[card] {
			c.broken(27, "host %s starts %s with %d bytes on gpu:%d, where models then hold %d of %d", e.Host, e.Model, n, card, held, has[card])
		}
	}
	if sum < m.Memory-int64(len(e.Cards)) || len(e.Cards) == 0 {
		c.broken(27, "host %s starts %s, which needs %d bytes, with %d on its GPUs", e.Host, e.Model, m.Memory, sum)
	}
}
