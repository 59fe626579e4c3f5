package linearizability

import (
	"context"
	"time"

	"reveille/infra/state"
)

// duty gives a gateway the duty to wake the host when it needs waking and nobody holds the duty; 0 not.
func (p *pool) duty(gateway string, at moment) uint64 {
	if awake(p.state) {
		if !p.lost(at) {
			p.callOff(at)
			return 0
		}
		p.forget()
		p.generation, p.noticed, p.power = 0, 0, lease{}
	}
	if p.power.token != 0 && p.power.end >= at.now {
		return 0
	}
	p.hold(gateway, draw(at, 1), at)
	if p.state != "waking" {
		p.state, p.woken, p.listed = "waking", at.now, true
		p.changed(at)
	}
	return p.power.token
}

// leftFor is how long a machine that a sweep left may be on its way down.
const leftFor = 120_000

// goesOff reports whether the machine is being turned off, so that its runner is not to serve again.
func (p *pool) goesOff(at moment) bool {
	switch {
	case awake(p.state):
		return false
	case p.left != 0 && at.now-p.left < leftFor:
		return true
	}
	return p.stopping && p.state == "asleep" && p.power.token == p.sleep && p.power.end >= at.now
}

func (p *pool) hold(owner string, token uint64, at moment) {
	p.power = lease{owner, token, at.now + state.WakeLease.Milliseconds()}
}

// callOff takes back the sleep of a host that still drains for it.
func (p *pool) callOff(at moment) {
	if p.state != "draining" || p.sleep == 0 {
		return
	}
	if p.power.token == p.sleep {
		p.power = lease{}
	}
	p.state, p.sleep = "ready", 0
	p.changed(at)
}

// claim: somebody offers to wake the host for what is queued there, or, Called, because an operator wants it.
type claim struct {
	Gateway string
	Called  bool
}

func (c claim) call(ctx context.Context, s *state.Store) (answer, error) {
	offer := s.ClaimWake
	if c.Called {
		offer = s.ForceWake
	}
	token, err := offer(ctx, c.Gateway, host)
	return answer{verdict: "ok", fence: number(token)}, err
}

func (c claim) apply(p *pool, at moment) answer {
	if wanted := p.dropUnwanted(at); !wanted && !c.Called {
		return answer{verdict: "ok"}
	}
	return answer{verdict: "ok", fence: p.duty(c.Gateway, at)}
}

// wake: the holder of the duty keeps it (renew), hands it back (leave), or gives it up, as the driver refused (failed) or the
// host did not come (overdue).
type wake struct {
	Token uint64
	Verb  string
}

func (w wake) call(ctx context.Context, s *state.Store) (answer, error) {
	switch w.Verb {
	case "renew":
		return verdict(s.RenewWake(ctx, host, id(w.Token)))
	case "leave":
		return verdict(s.ReleaseWake(ctx, host, id(w.Token)))
	case "overdue":
		return verdict(s.EndOverdueWake(ctx, host, id(w.Token), "no_capacity", "test"))
	}
	return verdict(s.FailWake(ctx, host, id(w.Token), "no_capacity", "test"))
}

func (w wake) apply(p *pool, at moment) answer {
	switch {
	case awake(p.state):
		return answer{verdict: "awake"}
	case p.power.token != w.Token:
		return answer{verdict: "lost"}
	case w.Verb == "renew":
		p.power.end = at.now + state.WakeLease.Milliseconds()
		return answer{verdict: "ok"}
	}
	p.power, p.state = lease{}, "asleep"
	p.changed(at)
	if w.Verb == "overdue" {
		p.sleep = draw(at, 0)
	}
	if w.Verb != "leave" {
		p.failed = at.now
		for len(p.queue) > 0 {
			p.end(p.ticket(p.queue[0]), "failed")
		}
	}
	return answer{verdict: "ok"}
}

// commitSleep: a sweep makes a host drain that has no work.
type commitSleep struct {
	Sweep    string
	Revision uint64
	Active   string // active_ms of the snapshot of that revision
}

func (c commitSleep) call(ctx context.Context, s *state.Store) (answer, error) {
	token, err := s.CommitSleep(ctx, host, c.Sweep, c.Revision, c.Active)
	out, err := verdict(err)
	out.fence = number(token)
	return out, err
}

// apply leaves Active out: here only a registration sets it, which is a new revision too.
func (c commitSleep) apply(p *pool, at moment) answer {
	switch {
	case c.Revision != p.revision, p.state != "ready", p.overdue(at):
		return answer{verdict: "stale"}
	case p.busy(), p.heldByOther(c.Sweep, at):
		return answer{verdict: "wanted"}
	}
	p.sleep = draw(at, 0)
	p.hold(c.Sweep, p.sleep, at)
	p.state = "draining"
	p.changed(at)
	return answer{verdict: "ok", fence: p.sleep}
}

func (p *pool) busy() bool { return p.loading != 0 || len(p.records)+len(p.queue) > 0 }

func (p *pool) heldByOther(who string, at moment) bool {
	return p.power.token != 0 && p.power.owner != who && p.power.end >= at.now
}

// confirmSleep: the runner of a host that drains for a sleep says that nothing is open there.
type confirmSleep struct{ Generation, Token uint64 }

func (c confirmSleep) call(ctx context.Context, s *state.Store) (answer, error) {
	return verdict(s.ConfirmSleep(ctx, host, c.Generation, id(c.Token), false))
}

func (c confirmSleep) apply(p *pool, at moment) answer {
	o := p.owner(c.Generation)
	switch {
	case o != "ok":
		return answer{verdict: o}
	case p.sleep == c.Token && p.state == "asleep":
		return answer{verdict: "ok"}
	case p.sleep != c.Token, p.state != "draining":
		return answer{verdict: "gone"}
	case p.busy():
		p.callOff(at)
		return answer{verdict: "wanted"}
	}
	p.forget()
	p.state = "asleep"
	p.changed(at)
	return answer{verdict: "ok"}
}

// stop: a sweep takes a sleep back (cancel), or takes, keeps and gives up the right to turn the machine off (stop, hold,
// done, failed, leave).
type stop struct {
	Sweep string
	Token uint64
	Verb  string
}

func (s stop) call(ctx context.Context, st *state.Store) (answer, error) {
	switch s.Verb {
	case "cancel":
		return verdict(st.CancelSleep(ctx, host, s.Sweep, id(s.Token)))
	case "stop":
		return verdict(st.BeginStop(ctx, host, s.Sweep, id(s.Token)))
	case "hold":
		return verdict(st.HoldStop(ctx, host, s.Sweep, id(s.Token)))
	case "done":
		return verdict(st.EndStop(ctx, host, s.Sweep, id(s.Token), ""))
	case "leave":
		return verdict(st.ReleaseStop(ctx, host, s.Sweep, id(s.Token)))
	}
	return verdict(st.EndStop(ctx, host, s.Sweep, id(s.Token), "test"))
}

func (s stop) apply(p *pool, at moment) answer {
	switch {
	case p.sleep != s.Token:
		return answer{verdict: "gone"}
	case p.heldByOther(s.Sweep, at):
		return answer{verdict: "lost"}
	case s.Verb == "cancel" && p.state == "draining":
		p.callOff(at)
		return answer{verdict: "ok"}
	case s.Verb == "cancel", p.state != "asleep":
		return answer{verdict: "gone"}
	case s.Verb == "hold", s.Verb == "stop" && !p.busy():
		p.hold(s.Sweep, s.Token, at)
		if s.Verb == "stop" {
			p.stopping = true
			p.changed(at)
		}
		return answer{verdict: "ok"}
	}
	if p.power.token == s.Token {
		p.power = lease{}
	}
	if s.Verb == "stop" {
		return answer{verdict: "wanted"}
	}
	switch {
	case s.Verb != "leave":
		p.stopping, p.left = false, 0
	case p.stopping:
		p.left = at.now
	}
	if s.Verb == "done" {
		p.sleep = 0
	}
	p.changed(at)
	return answer{verdict: "ok"}
}

// giveUpAfter is how long a wake may take, and a host be lost, before its machine is left to be turned off.
const giveUpAfter = 2 * time.Second

// giveUp: a sweep leaves a machine to be turned off whose wake took too long (stranded) or whose host is long lost (unseen).
type giveUp struct{ Verb string }

func (g giveUp) call(ctx context.Context, s *state.Store) (answer, error) {
	if g.Verb == "stranded" {
		return verdict(s.EndStranded(ctx, host, giveUpAfter))
	}
	return verdict(s.EndUnseen(ctx, host, giveUpAfter))
}

func (g giveUp) apply(p *pool, at moment) answer {
	from, since := "lost", p.seen
	if g.Verb == "stranded" {
		from, since = "waking", p.woken
	}
	if p.state != from || p.inUse(at) || at.now-since <= giveUpAfter.Milliseconds() {
		return answer{verdict: "gone"}
	}
	p.state, p.sleep, p.power = "asleep", draw(at, 0), lease{}
	p.changed(at)
	return answer{verdict: "ok"}
}

// inUse reports whether something is queued, or somebody has the power of the host.
func (p *pool) inUse(at moment) bool {
	return p.loading != 0 || len(p.queue) > 0 || p.power.token != 0 && p.power.end >= at.now
}

// forget: a sweep, or with Now an operator, removes the host from the pool.
type forget struct{ Now bool }

func (f forget) limit() time.Duration {
	if f.Now {
		return 0
	}
	return giveUpAfter
}

func (f forget) call(ctx context.Context, s *state.Store) (answer, error) {
	return verdict(s.Forget(ctx, host, f.limit()))
}

func (f forget) apply(p *pool, at moment) answer {
	sleeps := p.state == "" || p.state == "asleep" || p.state == "lost"
	switch {
	case !p.listed:
		return answer{verdict: "gone"}
	case !sleeps, p.inUse(at), at.now-max(p.seen, p.woken, p.failed) < f.limit().Milliseconds():
		return answer{verdict: "wanted"}
	}
	p.forget()
	p.state, p.generation, p.seen, p.noticed, p.power, p.sleep, p.boot = "", 0, 0, 0, lease{}, 0, ""
	p.stopping, p.left, p.woken, p.failed, p.listed = false, 0, 0, 0, false
	p.changed(at)
	return answer{verdict: "ok"}
}
