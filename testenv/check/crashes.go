package check

import "time"

// sentWithin is how long a request that its gateway let pass may be on its way to an engine.
const sentWithin = 100 * time.Millisecond

// blamed notes an engine that died under a constrained request, once for each gateway.
func (c *Checker) blamed(r *request) {
	list := c.crashes[r.gateway]
	if n := len(list); n == 0 || list[n-1].pid != r.pid {
		c.crashes[r.gateway] = append(list, crash{r.pid, c.now.At})
	}
}

// crash is the end of an engine under a constrained request.
type crash struct {
	pid int
	at  time.Duration
}

// barred reports whether engines crashed twice, at least since ago and soon after each other, under constrained requests of
// a gateway's clients, who are one key.
func (c *Checker) barred(gateway string, since time.Duration) bool {
	list := c.crashes[gateway]
	for i, last := range list {
		ago := c.now.At - last.at
		if i > 0 && last.at-list[i-1].at < c.world.Barred && ago >= since && ago < c.world.Barred {
			return true
		}
	}
	return false
}

// repeats reports whether a request is to be sent once more: its first engine died with it before a byte of the answer, and
// it is not constrained.
func (c *Checker) repeats(r *request) bool {
	en := c.engines[r.pid]
	return en != nil && en.died && !r.repeated && !r.answered && !r.constrained
}

// repeat looks at a request that its gateway is about to send once more.
func (c *Checker) repeat(r *request, e Event) {
	c.judge(23)
	if !c.repeats(r) {
		c.broken(23, "request %s, which reached process %d, is sent once more", e.Request, r.pid)
	}
	r.repeated, r.pid = true, 0
	r.deadline = max(r.deadline, e.At) // late in an engine is no fault of the gateway
}

// notRepeated looks at a request that ended with its engine: it was to be repeated if it could be.
func (c *Checker) notRepeated(r *request, e Event) {
	if e.Text != "engine_crashed" {
		return
	}
	c.judge(23)
	if c.repeats(r) && c.host(c.engines[r.pid].host).up && e.At < r.deadline {
		c.broken(23, "request %s got %q and was not repeated although process %d died before a byte of the answer", e.Request, e.Text, r.pid)
	}
}
