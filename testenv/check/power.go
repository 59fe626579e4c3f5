package check

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/power"
)

const (
	wokenWithin   = 30 * time.Second // a wanted host whose machine is off: a lease of a dead process, and a driver's pause
	orderWithin   = 20 * time.Second // a sweep and its driver's call
	noCapacityFor = 2 * time.Minute  // after a wake that failed
	staysKnown    = 70 * time.Second // longer than ForgetAfter: until it counts as lost, and jumps of Redis' clock
)

// turnedOff looks at a machine that is told to go off.
func (c *Checker) turnedOff(e Event) {
	if !c.Calm() {
		return
	}
	c.judge(19)
	for _, en := range c.alive(e.Host, func(*engine) bool { return true }) {
		c.broken(19, "the machine of host %s is turned off with %s (process %d) and %d open requests on it", e.Host, en.model, en.pid, len(en.open))
	}
}

// forgotten looks at a host that the pool forgets.
func (c *Checker) forgotten(h *hostLog, e Event) {
	if !c.Calm() {
		return
	}
	c.judge(29)
	if h.up {
		c.broken(29, "host %s is forgotten while it is up", e.Host)
	}
}

// rests looks at a host that does not serve: it is to be woken when it is wanted, and its machine to be off when not.
func (c *Checker) rests(h *hostLog, e Event) {
	v := e.View
	wanted, inCatalogue := false, c.world.Catalogue[e.Host]
	for _, t := range v.Queue {
		wanted = wanted || t.Load && t.Wanted
	}
	serves := h.up && (v.State == policy.Ready || v.State == policy.Draining)
	leaves := v.State == policy.Draining || v.Power == power.Stopping
	if wanted && leaves && inCatalogue && c.Calm() {
		c.judge(20)
	}
	if d := lasts(&h.unwoken, wanted && inCatalogue && !h.up && v.Power == power.Off && c.Calm(), e.At); d > wokenWithin {
		c.broken(20, "host %s is wanted and off for %v and is not woken", e.Host, d)
	}
	swept := c.world.Sweep > 0 && c.Calm()
	costs := swept && inCatalogue && !serves && !h.unknown && v.State != "" && len(v.Queue) == 0 && v.Power == power.On
	if costs {
		c.judge(28)
	}
	if d := lasts(&h.costs, costs, e.At); d > c.world.WakeLimit+2*c.world.Sweep+orderWithin {
		c.broken(28, "the machine of host %s, which is %s and not wanted, runs for %v", e.Host, v.State, d)
	}
	if !h.up && !inCatalogue && swept {
		c.judge(29)
	}
	gone := !h.up && !inCatalogue && v.State != "" && len(v.Queue) == 0
	if d := lasts(&h.known, gone, e.At); swept && d > c.world.ForgetAfter+2*c.world.Sweep+staysKnown {
		c.broken(29, "host %s is gone for %v and not forgotten", e.Host, d)
	}
}

// lasts is how long something has been so. since is from when on, -1 for not.
func lasts(since *time.Duration, so bool, now time.Duration) time.Duration {
	switch {
	case !so:
		*since = -1
	case *since < 0:
		*since = now
	default:
		return now - *since
	}
	return 0
}
