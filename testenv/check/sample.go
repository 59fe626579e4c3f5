package check

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/power"
)

// startsWithin is how soon a load starts that can; samples come a quarter of a second apart.
const startsWithin = time.Second + 300*time.Millisecond

// movesWithin is how soon something is done about a request that waits: gateways and runners look once a second, and every
// four seconds whether a machine is off.
const movesWithin = 6 * time.Second

// sample looks at a host, and at all requests that are late.
func (c *Checker) sample(e Event) {
	h, v := c.host(e.Host), e.View
	c.late(e.At)
	c.rests(h, e)
	c.progress(h, e)
	h.beganLoad(v.Loading, e.At)
	if !h.up {
		h.stuck = -1
		clear(h.heads)
		return
	}
	for _, r := range v.Residents {
		en := c.engines[r.PID]
		if en == nil {
			continue
		}
		en.closed = en.closed || r.Closed || r.State == policy.ModelDraining
		if r.InFlight > 0 || len(en.open) > 0 {
			c.judge(22)
		}
		if en.state != gone && r.InFlight != len(en.open) {
			c.broken(22, "host %s counts %d open requests on %s, there are %d", e.Host, r.InFlight, r.Model, len(en.open))
		}
	}
	c.starts(h, e)
	c.heads(h, e)
	if !c.Calm() {
		return
	}
	for _, r := range v.Records {
		if en := c.engines[r.PID]; r.PID != 0 && en != nil && en.state == gone && e.At-en.exited > recordsGone {
			c.broken(18, "Redis holds %s on %s with process %d, which ended %v ago", r.Model, e.Host, r.PID, e.At-en.exited)
		}
	}
	for _, en := range c.engines {
		if since := e.At - en.exited; en.host == e.Host && en.state == gone && since > recordsGone && since < recordsGone+time.Second {
			c.judge(18)
		}
		for id := range en.open {
			if en.host == e.Host && en.state == gone && e.At-en.exited > time.Second {
				c.broken(22, "request %s is open on process %d, which ended %v ago", id, en.pid, e.At-en.exited)
			}
		}
	}
}

// starts looks for a load that could start and does not: one is queued, none is under way, nothing is in the way.
func (c *Checker) starts(h *hostLog, e Event) {
	v := e.View
	can := v.Ready && v.Loading == ""
	queued := ""
	for _, t := range v.Queue {
		if t.Load && t.Wanted && queued == "" {
			queued = t.Model
		}
	}
	for _, r := range v.Residents {
		can = can && r.State == policy.ModelLoaded && r.InFlight == 0 && !r.Reserved
	}
	if v.Ready && queued != "" && c.Calm() {
		c.judge(14)
	}
	switch {
	case !can || queued == "" || !c.Calm():
		h.stuck = -1
	case h.stuck < 0:
		h.stuck = e.At
	case e.At-h.stuck > startsWithin:
		c.broken(14, "host %s could load %s since %v and does not", e.Host, queued, h.stuck)
		h.stuck = e.At
	}
}

// progress looks for a request that waits in a pool in which nothing is under way: no load, no stop, no request, no machine
// on its way up or down.
func (c *Checker) progress(h *hostLog, e Event) {
	v := e.View
	h.idle = v.Loading == "" && (v.Power != power.Starting && v.Power != power.Stopping) && h.up == (v.State == policy.Ready)
	for _, r := range v.Residents {
		h.idle = h.idle && r.State == policy.ModelLoaded && r.InFlight == 0 && !r.Reserved
	}
	still := c.Calm() && e.At-c.unwoken > noCapacityFor
	for _, o := range c.hosts {
		still = still && o.idle
	}
	waits := ""
	if still {
		waits = c.waits()
	}
	if d := lasts(&c.still, waits != "", e.At); d > movesWithin {
		c.broken(14, "request %s waits and the pool has done nothing for %v", waits, d)
	}
}

// waits is a request that waits at a gateway, "" for none.
func (c *Checker) waits() string {
	for _, w := range c.wants {
		for id := range w.waiting {
			if r := c.requests[id]; r != nil && r.outcome == "" && r.pid == 0 {
				return id
			}
		}
	}
	return ""
}

// heads notes which load of each type has headed the queue since when, with nothing under way.
func (c *Checker) heads(h *hostLog, e Event) {
	seen := map[string]bool{}
	behind := false // a load that no other may overtake any more
	for _, t := range e.View.Queue {
		ty := string(c.typeOf(t.Model))
		if !t.Load || !t.Wanted || seen[ty] {
			continue
		}
		seen[ty] = true
		wait := behind
		behind = behind || h.overtaken[t.ID] >= maxOvertaken
		if wait || e.View.Loading != "" || !e.View.Ready {
			delete(h.heads, ty)
		} else if h.heads[ty].ticket != t.ID {
			h.heads[ty] = headOf{t.ID, t.Model, e.At}
		}
	}
	for ty := range h.heads {
		if !seen[ty] {
			delete(h.heads, ty)
		}
	}
}

// late looks for requests without an outcome after their time.
func (c *Checker) late(now time.Duration) {
	for id, r := range c.requests {
		if r.outcome == "" && !r.background && r.pid == 0 && now > r.deadline+time.Second {
			c.broken(13, "request %s for %s has no outcome %v after its time", id, r.model, now-r.deadline)
			r.outcome = "none"
		}
	}
}

// Finish looks at the end of a history that has come to rest: nothing is open, every request has its outcome.
func (c *Checker) Finish() {
	for id, r := range c.requests {
		if r.open {
			c.broken(22, "request %s is open at the end", id)
		}
		if r.outcome == "" && !r.background {
			c.broken(13, "request %s has no outcome at the end", id)
		}
	}
}
