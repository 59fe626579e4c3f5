package check

// repeats reports whether a request is to be sent once more: its first engine died with it before a byte of the
// response.
func (c *Checker) repeats(r *request) bool {
	en := c.engines[r.pid]
	return en != nil && en.died && !r.repeated && !r.answered
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
