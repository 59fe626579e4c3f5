package sim

import (
	"math/rand/v2"
	"time"
)

// rounds is how often a scenario with faults turns from them to quiet times.
const rounds = 2

// Generate draws a scenario of so many steps from a seed. Every fourth has no faults. In the others each round has faults
// among its steps, then mends everything and waits until promises for quiet times hold again, and then has none.
func Generate(seed uint64, steps int) Scenario {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x51e9))}
	s := Scenario{Seed: seed, Gateways: 1 + g.IntN(3), Priorities: seed%2 == 0}
	for i := range 1 + g.IntN(3) {
		h := HostSpec{Limits: pick(g, "1", "1", "2", "2", "2 1 1 1", "1 2", "-1"), Asleep: g.IntN(4) == 0, Budget: pick(g, 0, 0, 0, 3, 5, 8)}
		h.Strange = i > 0 && !h.Asleep && g.IntN(3) == 0
		s.Hosts = append(s.Hosts, h)
	}
	if g.IntN(4) > 0 {
		s.Sweep, s.Idle = pick(g, 5*time.Second, 10*time.Second, 20*time.Second), pick(g, 2*time.Second, 8*time.Second, 30*time.Second)
	}
	g.scenario = &s
	g.models = 2 + g.IntN(len(modelNames)-len(sized)-1)
	g.steps(steps)
	return s
}

// GenerateSizes draws a scenario of models of several sizes on hosts of several GPUs.
func GenerateSizes(seed uint64, steps int) Scenario {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x517e))}
	s := Scenario{Seed: seed, Gateways: 1 + g.IntN(3)}
	for _, gpus := range []string{pick(g, "24", "24,24"), pick(g, "48", "48,48", "24,48"), pick(g, "80", "80,80")} {
		s.Hosts = append(s.Hosts, HostSpec{Limits: pick(g, "-1", "-1", "2"), Asleep: g.IntN(4) == 0, GPUs: gpus})
	}
	if g.IntN(4) > 0 {
		s.Sweep, s.Idle = pick(g, 5*time.Second, 20*time.Second), pick(g, 8*time.Second, 30*time.Second)
	}
	g.scenario = &s
	g.models, g.first = len(sized), len(modelNames)-len(sized)
	g.steps(steps)
	return s
}

// GenerateCopies draws a scenario of models that may have several copies, whose engines serve few requests at a time.
func GenerateCopies(seed uint64, steps int) Scenario {
	s := Generate(seed, steps)
	s.Copies = Copies{Max: 2 + int(seed%2), Parallel: 1 + int(seed%3)}
	return s
}

// GenerateGroups draws a scenario of models that may have several copies on a group of two to four machines, which take
// up to two minutes to wake.
func GenerateGroups(seed uint64, steps int) Scenario {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x96f0))}
	s := Scenario{
		Seed: seed, Gateways: 1 + g.IntN(3), Group: true, Sweep: pick(g, 5*time.Second, 10*time.Second, 20*time.Second), Idle: pick(g, 8*time.Second, 30*time.Second, time.Minute),
		Copies: Copies{Max: 1 + g.IntN(4), Parallel: 1 + g.IntN(4), Wake: pick(g, 5*time.Second, 30*time.Second, 2*time.Minute)},
	}
	limits := pick(g, "1", "2", "-1")
	for range 2 + g.IntN(3) {
		s.Hosts = append(s.Hosts, HostSpec{Limits: limits, Asleep: true})
	}
	g.scenario = &s
	g.models, g.group = 2+g.IntN(len(modelNames)-len(sized)-1), true
	g.steps(steps)
	return s
}

// steps draws the scenario's steps.
func (g *generator) steps(steps int) {
	s := g.scenario
	g.serve = pick(g, 100*time.Millisecond, time.Second)
	g.pace = pick[time.Duration](g, 20, 100, 300, 800) * time.Millisecond
	if g.group {
		g.pace = max(g.pace, s.Copies.Wake/20) // or no machine would ever come
	}
	often := pick(g, 0, 10, 25, 50)
	for round := 1; len(s.Steps) < steps; round++ {
		end := steps * round / rounds
		if often > 0 {
			g.faults = often
			g.draw((end - len(s.Steps)) / 2)
			if n := len(s.Hosts); s.Hosts[n-1].Strange && g.IntN(2) == 0 {
				s.Steps = append(s.Steps, Step{Op: Depart, Host: n})
			}
			s.Steps = append(s.Steps, Step{Op: Mend, After: s.settle() + g.skew})
		}
		g.quiet(end - len(s.Steps))
	}
}

type generator struct {
	*rand.Rand
	scenario *Scenario
	first    int           // position of the first model that is asked for
	models   int           // how many are asked for
	faults   int           // per cent of the steps
	group    bool          // the hosts are machines of a group
	pace     time.Duration // half the longest time between two steps
	serve    time.Duration // the longest that most answers take
	hot      int           // model that most requests are for and that is hardly ever idle, 0 none
	skew     time.Duration // largest jump of the clock since the last mend
}

// quiet adds n steps without faults, at a pace that lets loads be waited for, and often with one model asked for most.
func (g *generator) quiet(n int) {
	pace := g.pace
	g.faults, g.skew, g.pace = 0, 0, max(g.pace, 400*time.Millisecond)
	if g.IntN(2) == 0 {
		g.hot = g.model()
	}
	g.draw(n)
	g.pace, g.hot = pace, 0
}

// draw adds n steps.
func (g *generator) draw(n int) {
	for ; n > 0; n-- {
		st := g.step()
		if g.IntN(3) > 0 {
			st.After = g.upTo(2 * g.pace)
		}
		if st.Op == Clock {
			g.skew = max(g.skew, st.For, -st.For)
		}
		g.scenario.Steps = append(g.scenario.Steps, st)
		if st.Op == Sleep && g.IntN(2) == 0 && n > 1 { // and somebody comes as it goes
			n--
			g.scenario.Steps = append(g.scenario.Steps, g.request())
		}
	}
}

func pick[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

// upTo is a length of 1 ms up to d.
func (g *generator) upTo(d time.Duration) time.Duration {
	return time.Millisecond * time.Duration(1+g.Int64N(max(1, d.Milliseconds())))
}

func (g *generator) model() int {
	if g.hot > 0 && g.IntN(10) < 6 {
		return g.hot
	}
	return g.first + 1 + g.IntN(g.models)
}

func (g *generator) gateway() int { return 1 + g.IntN(g.scenario.Gateways) }
func (g *generator) host() int    { return 1 + g.IntN(len(g.scenario.Hosts)) }

func (g *generator) step() Step {
	if g.IntN(100) < g.faults {
		return g.fault()
	}
	switch n := g.IntN(100); {
	case n < 70:
		return g.request()
	case n < 73:
		return Step{Op: Start, Gateway: g.gateway(), Model: g.model()}
	case n < 75:
		return Step{Op: Unload, Gateway: g.gateway(), Model: g.model(), N: g.IntN(2)}
	case n < 78:
		return Step{Op: Idle, Model: g.model(), For: g.upTo(3 * time.Second)}
	case n < 80:
		return Step{Op: Reload, Gateway: g.gateway(), Model: g.model(), N: g.IntN(2)}
	case n < 83:
		return Step{Op: Die, Host: g.host(), Model: g.model()}
	case n < 86:
		return Step{Op: Fail, Host: g.host(), Model: g.model(), N: 1 + g.IntN(3)}
	case n < 87:
		return Step{Op: Missing, Host: g.host(), Model: g.model(), N: 1}
	case n < 91:
		return Step{Op: Sleep, Gateway: g.gateway(), Host: g.host(), N: g.IntN(2)}
	case n < 92:
		return Step{Op: Wake, Gateway: g.gateway(), Host: g.host()}
	case n < 93:
		return Step{Op: SweepEnd, N: g.IntN(2)}
	case n < 94:
		return Step{Op: Edit, Model: g.model()}
	}
	return Step{Op: Rest, After: g.upTo(8 * g.pace)}
}

func (g *generator) request() Step {
	s := Step{Op: Request, Gateway: g.gateway(), Model: g.model(), For: pick(g, 60*time.Second, 60*time.Second, 30*time.Second, g.upTo(10*time.Second)), Serve: g.upTo(g.serve)}
	if s.Model == g.hot {
		s.Serve = time.Second + g.upTo(2*time.Second)
	}
	if g.IntN(8) == 0 {
		s.N = 2 + g.IntN(12)
	}
	if g.IntN(10) == 0 {
		s.Serve = g.upTo(20 * time.Second)
	}
	if g.IntN(6) == 0 {
		s.Leave = g.upTo(4 * time.Second)
	}
	return s
}

// faults are what an operator hopes not to see; those that stand here twice are drawn as often.
var faults = []Op{
	Crash, Crash, Stop, GateCrash, GateCrash, GateStop, Cut, Cut, Stall, Stall, Lose, Lose, Lose, Slow, Garble, Garble, Part, Flush, Remember, Remember,
	Failover, Failover, Failover, Refuse, Clock, NoWake, Deaf, Ignore, Linger, SweepLose, Depart,
}

// fault draws one of faults.
func (g *generator) fault() Step {
	s := Step{Op: pick(g, faults...)}
	if g.group && g.IntN(4) == 0 {
		s.Op = pick(g, NoWake, Deaf, Reclaim)
	}
	s.For = g.upTo(pick(g, time.Second, 5*time.Second, 30*time.Second))
	switch s.Op {
	case Crash, Stop:
		s.Host = g.host()
	case Reclaim:
		s.Host, s.For = g.host(), 0
	case NoWake, Deaf, Ignore:
		s.Host, s.N, s.For = g.host(), 1+g.IntN(2), 0
	case SweepLose:
		s.N, s.Skip, s.For = 1, g.IntN(40), 0
	case Linger:
		s.Host, s.For = g.host(), min(s.For, 12*time.Second)
	case Depart:
		s.Host, s.For = len(g.scenario.Hosts), s.For*time.Duration(g.IntN(2))
	case GateCrash, GateStop:
		s.Gateway = g.gateway()
	case Slow:
		s.Gateway, s.For = g.gateway(), g.upTo(140*time.Millisecond)
	case Part:
		s.Gateway, s.Host = g.gateway(), g.host()
	case Cut, Stall, Lose, Garble:
		if g.IntN(2) == 0 {
			s.Host = g.host()
		} else {
			s.Gateway = g.gateway()
		}
		if s.Op == Lose {
			s.N, s.Skip, s.For = 1+g.IntN(3), g.IntN(4), 0
		}
		if s.Op == Garble {
			s.For = 0
		}
	case Flush, Remember, Failover:
		s.For = 0
	case Refuse:
		s.For = min(s.For, 5*time.Second)
	case Clock:
		if g.IntN(2) == 0 {
			s.For = -s.For
		}
	}
	return s
}
