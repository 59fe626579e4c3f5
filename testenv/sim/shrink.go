package sim

import (
	"slices"
	"time"

	"reveille/testenv/check"
)

// Shrink takes steps away from a failing scenario as long as broken says that what is left breaks the same promise.
// A step that goes leaves its time to the one before where that is needed. tries bounds the runs.
func Shrink(s Scenario, tries int, broken func(Scenario) bool) Scenario {
	try := func(steps []Step) bool {
		if tries--; tries < 0 {
			return false
		}
		next := s
		next.Steps = steps
		if !broken(next) {
			return false
		}
		s = next
		return true
	}
	for size := (len(s.Steps) + 1) / 2; size > 0; size /= 2 {
		for again := true; again; {
			again = false
			for at := 0; at < len(s.Steps); {
				end := min(at+size, len(s.Steps))
				if try(without(s.Steps, at, end, false)) || try(without(s.Steps, at, end, true)) {
					again = true
				} else {
					at = end
				}
			}
			again = again && size == 1
		}
	}
	for i := range s.Steps {
		for _, simpler := range simpler(s.Steps[i]) {
			steps := slices.Clone(s.Steps)
			steps[i] = simpler
			try(steps)
		}
	}
	return s
}

// without leaves out steps; with keep their time goes to the step before.
func without(steps []Step, from, to int, keep bool) []Step {
	out := slices.Clone(steps[:from])
	if keep {
		var d time.Duration
		for _, s := range steps[from:to] {
			d += s.After
		}
		if len(out) == 0 {
			out = append(out, Step{Op: Rest})
		}
		out[len(out)-1].After += d
	}
	return append(out, steps[to:]...)
}

// simpler are variants of a step that say less.
func simpler(s Step) []Step {
	var out []Step
	add := func(change func(*Step)) {
		next := s
		if change(&next); next != s {
			out = append(out, next)
		}
	}
	add(func(n *Step) { n.N = min(n.N, 1) })
	add(func(n *Step) { n.Leave = 0 })
	add(func(n *Step) { n.After = 0 })
	add(func(n *Step) { n.Serve = min(n.Serve, time.Millisecond) })
	return out
}

// Breaks reports whether a report holds a violation of the invariant.
func (r Report) Breaks(invariant int) bool {
	return slices.ContainsFunc(r.Violations, func(v check.Violation) bool { return v.Invariant == invariant })
}
