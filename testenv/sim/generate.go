package sim

import (
	"math/rand/v2"
	"time"
)

// Generate draws a scenario of so many steps from a seed.
func Generate(seed uint64, steps int) Scenario {
	g := generator{Rand: rand.New(rand.NewPCG(seed, 0x51e9))}
	s := Scenario{Seed: seed, Gateways: 1 + g.IntN(3)}
	for i := range 1 + g.IntN(3) {
		h := HostSpec{Limits: pick(g, "1", "1", "2", "1 2", "2 1 1 1", "-1"), Asleep: g.IntN(4) == 0}
		h.Budget = [...]int{0, 0, 0, 3, 5, 8}[chance(seed, "budget", hostName(i+1))%6] // leaves the other draws as they were
		s.Hosts = append(s.Hosts, h)
	}
	g.scenario = &s
	g.models = 2 + g.IntN(len(modelNames)-1)
	g.faults = [...]int{0, 3, 10, 25}[g.IntN(4)]
	g.pace = [...]time.Duration{20, 100, 300, 800}[g.IntN(4)] * time.Millisecond
	for range steps {
		st := g.step()
		if g.IntN(3) > 0 {
			st.After = g.upTo(2 * g.pace)
		}
		s.Steps = append(s.Steps, st)
	}
	return s
}

type generator struct {
	*rand.Rand
	scenario *Scenario
	models   int // how many are asked for
	faults   int // per cent of the steps
	pace     time.Duration
}

func pick[T any](g generator, list ...T) T { return list[g.IntN(len(list))] }

// upTo is a length of 1 ms up to d.
func (g generator) upTo(d time.Duration) time.Duration {
	return time.Millisecond * time.Duration(1+g.Int64N(max(1, d.Milliseconds())))
}

func (g generator) model() int   { return 1 + g.IntN(g.models) }
func (g generator) gateway() int { return 1 + g.IntN(g.scenario.Gateways) }
func (g generator) host() int    { return 1 + g.IntN(len(g.scenario.Hosts)) }

func (g generator) step() Step {
	if g.IntN(100) < g.faults {
		return g.fault()
	}
	switch n := g.IntN(100); {
	case n < 70:
		s := Step{Op: Request, Gateway: g.gateway(), Model: g.model(), For: pick(g, 60*time.Second, 60*time.Second, 30*time.Second, g.upTo(10*time.Second)), Serve: g.upTo(time.Second)}
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
	case n < 74:
		return Step{Op: Start, Gateway: g.gateway(), Model: g.model()}
	case n < 77:
		return Step{Op: Unload, Gateway: g.gateway(), Model: g.model(), N: g.IntN(2)}
	case n < 81:
		return Step{Op: Idle, Model: g.model(), For: g.upTo(3 * time.Second)}
	case n < 83:
		return Step{Op: Reload, Gateway: g.gateway(), Model: g.model(), N: g.IntN(2)}
	case n < 86:
		return Step{Op: Die, Host: g.host(), Model: g.model()}
	case n < 89:
		return Step{Op: Fail, Host: g.host(), Model: g.model(), N: 1 + g.IntN(3)}
	case n < 90:
		return Step{Op: Missing, Host: g.host(), Model: g.model(), N: 1}
	case n < 93:
		return Step{Op: Edit, Model: g.model()}
	}
	return Step{Op: Rest, After: g.upTo(8 * g.pace)}
}

// fault draws what an operator hopes not to see.
func (g generator) fault() Step {
	s := Step{Op: pick(g, Crash, Crash, Stop, GateCrash, GateCrash, GateStop, Cut, Cut, Stall, Stall, Lose, Lose, Lose, Slow, Part, Flush, Remember, Remember, Failover, Refuse, Clock, NoWake)}
	s.For = g.upTo(pick(g, time.Second, 5*time.Second, 30*time.Second))
	switch s.Op {
	case Crash, Stop:
		s.Host = g.host()
	case NoWake:
		s.Host, s.N, s.For = g.host(), 1+g.IntN(2), 0
	case GateCrash, GateStop:
		s.Gateway = g.gateway()
	case Slow:
		s.Gateway, s.For = g.gateway(), g.upTo(140*time.Millisecond)
	case Part:
		s.Gateway, s.Host = g.gateway(), g.host()
	case Cut, Stall, Lose:
		if g.IntN(2) == 0 {
			s.Host = g.host()
		} else {
			s.Gateway = g.gateway()
		}
		if s.Op == Lose {
			s.N, s.Skip, s.For = 1+g.IntN(3), g.IntN(4), 0
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
