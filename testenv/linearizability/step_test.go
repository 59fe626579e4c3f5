package linearizability

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// input and output are what porcupine knows of a call.
type (
	input struct {
		event any // an operation, or one of the two below
		at    moment
	}
	output struct {
		answer
		lost bool // the reply was: the call may have happened or not
	}
)

// What the test does to Redis is in each pool's history too.
type (
	// inStep: the replica holds all that was acknowledged before this began. From here on it lags, and its promotion
	// will leave the revision Survives.
	inStep struct{ Survives uint64 }
	// failover: the replica is the primary from here on.
	failover struct{}
)

// model is the pool that takes one call at a time, as porcupine takes it.
func model() porcupine.Model {
	seed := maphash.MakeSeed()
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{&pool{records: map[string]string{}}} },
		Step: func(state, in, out any) []any {
			var next []any
			for _, p := range step(state.(*pool), in.(input), out.(output)) {
				next = append(next, p)
			}
			return next
		},
		Equal: func(a, b any) bool { return same(a.(*pool), b.(*pool)) },
		Hash:  func(state any) uint64 { return maphash.Comparable(seed, state.(*pool).outline()) },
		DescribeOperation: func(in, out any) string {
			return fmt.Sprintf("%s → %s", in.(input), out.(output))
		},
		DescribeState: func(state any) string { return state.(*pool).String() },
	}
	return m.ToModel()
}

// step is what the pool can be after a call that told this, nothing when it can't have told it.
func step(p *pool, in input, out output) []*pool {
	c := p.clone()
	switch event := in.event.(type) {
	case inStep:
		c.lagging, c.survives = true, event.Survives
		c.remember(event)
	case failover:
		var all []*pool
		for _, old := range p.past {
			c := old.clone()
			c.revision, c.restored = p.survives, true
			c.highestFence, c.highestRevision = p.highestFence, max(p.highestRevision, p.survives)
			all = append(all, c)
		}
		return all
	case operation:
		want := event.apply(c, in.at)
		if !out.lost && !c.tells(want, out.answer, in.at) {
			return nil
		}
		if len(c.records) > slots && !c.restored {
			if out.lost {
				return []*pool{p} // it did not happen
			}
			return nil
		}
		if c.lagging {
			c.remember(event)
		}
	}
	return []*pool{c}
}

// remember adds the pool as it is to what may survive. What a call only read is the pool that is there already, better
// known; what changed nothing adds nothing, so that orders of such calls make no difference.
func (p *pool) remember(event any) {
	now := *p
	now.lagging, now.survives, now.past = false, 0, nil
	last := len(p.past) - 1
	_, reads := event.(snapshot)
	switch {
	case p.revision != p.survives && (p.revision&unheard == 0 || p.least > p.survives):
	case last >= 0 && (reads || same(p.past[last], &now)):
		p.past = append(slices.Clip(p.past[:last]), &now)
	default:
		p.past = append(slices.Clip(p.past), &now)
	}
}

// same compares pools.
func same(a, b *pool) bool { return a == b || a.outline() == b.outline() && reflect.DeepEqual(a, b) }

// outline is the same for equal pools, and compared fast.
type outline struct {
	state                                       string
	revision, generation, loading, sleep, power uint64
	seen, end                                   int64
	tickets, queue, records, past               int
}

func (p *pool) outline() outline {
	return outline{
		p.state, p.revision, p.generation, p.loading, p.sleep, p.power.token, p.seen, p.power.end, len(p.tickets), len(p.queue), len(p.records), len(p.past),
	}
}

func (in input) String() string {
	_, text, _ := strings.Cut(fmt.Sprintf("%T%+v", in.event, in.event), ".") // without the package
	if in.at.now > redisClock {
		text += fmt.Sprintf(" at %d", in.at.now)
	}
	return text
}

func (out output) String() string {
	if out.lost {
		return "no reply"
	}
	text := strings.Join(strings.Fields(out.verdict+" "+out.state+" "+out.records), " ")
	for _, f := range []struct {
		name  string
		value uint64
	}{
		{"ticket", out.ticket}, {"fence", out.fence}, {"revision", out.revision}, {"generation", out.generation}, {"sleep", out.sleep},
		{"position", uint64(out.position)},
	} {
		if f.value != 0 {
			text += fmt.Sprintf(" %s %d", f.name, f.value)
		}
	}
	if out.rest != "" {
		text += fmt.Sprintf(" %v %s", out.queue, out.rest)
	}
	return text
}

func (p *pool) String() string {
	text := fmt.Sprintf("host %q of generation %s holds %q, loads %s, sleep %s, power %s of %q till %d, revision %s, queue: ",
		p.state, name(p.generation), list(p.records), name(p.loading), name(p.sleep), name(p.power.token), p.power.owner, p.power.end, name(p.revision))
	for _, id := range p.queue {
		text += name(id) + " " + describe(p.ticket(id).model, p.ticket(id).state, len(p.ticket(id).waiters))
	}
	return text
}

// name is a number for people.
func name(n uint64) string {
	if n&unheard != 0 {
		return fmt.Sprintf("(call %d)", n&^unheard)
	}
	return fmt.Sprint(n)
}
