package constraint

import (
	"slices"
	"unicode"
)

// span is a range of code points, both ends included.
type span struct{ low, high rune }

// tidy sorts spans and joins those that touch. With not set, it returns the complement.
func tidy(spans []span, not bool) (out []span) {
	slices.SortFunc(spans, func(a, b span) int { return int(a.low - b.low) })
	joined := spans[:0]
	for _, s := range spans {
		if n := len(joined); n > 0 && s.low <= joined[n-1].high+1 {
			joined[n-1].high = max(joined[n-1].high, s.high)
		} else {
			joined = append(joined, s)
		}
	}
	if !not {
		return joined
	}
	from := rune(0)
	for _, s := range joined {
		if from < s.low {
			out = append(out, span{from, s.low - 1})
		}
		from = s.high + 1
	}
	if from <= unicode.MaxRune {
		out = append(out, span{from, unicode.MaxRune})
	}
	return out
}

// elem is an element of an alternative: a terminal or the name of a rule.
type elem struct {
	rule int32 // -1 for a terminal
	set  int32 // of a terminal: its place in cfg.sets
	last bool  // ends its alternative
}

// cfg is a context-free grammar in the form that llama.cpp runs.
type cfg struct {
	elems []elem
	rules [][]int32 // where the alternatives of each rule begin in elems, -1 for an empty one
	sets  [][]span
	known map[string]int32 // sets by the text that they are written as
}

// rule returns a new rule, which has no alternatives yet.
func (g *cfg) rule() elem {
	g.rules = append(g.rules, nil)
	return elem{rule: int32(len(g.rules) - 1)}
}

// define sets the alternatives of a rule.
func (g *cfg) define(rule elem, alternatives ...[]elem) {
	starts := make([]int32, 0, len(alternatives))
	for _, a := range alternatives {
		if len(a) == 0 {
			starts = append(starts, -1)
			continue
		}
		starts = append(starts, int32(len(g.elems)))
		g.elems = append(g.elems, a...)
		g.elems[len(g.elems)-1].last = true
	}
	g.rules[rule.rule] = starts
}

// group returns an element that stands for one of several alternatives.
func (g *cfg) group(alternatives ...[]elem) elem {
	r := g.rule()
	g.define(r, alternatives...)
	return r
}

// terminal returns a terminal of the symbols that spans returns. spans is called once for each text.
func (g *cfg) terminal(text string, spans func() []span) elem {
	set, ok := g.known[text]
	if !ok {
		if g.known == nil {
			g.known = map[string]int32{}
		}
		set = int32(len(g.sets))
		g.known[text] = set
		g.sets = append(g.sets, spans())
	}
	return elem{rule: -1, set: set}
}

// repeat returns parts that stand low to high times, without end if high is
// negative, as llama.cpp writes them out.
func (g *cfg) repeat(parts []elem, low, high int) []elem {
	if len(parts) == 0 {
		return nil
	}
	one := parts[0]
	if len(parts) > 1 {
		one = g.group(parts)
	}
	all := slices.Repeat([]elem{one}, low)
	if high < 0 {
		more := g.rule()
		g.define(more, []elem{one, more}, nil)
		return append(all, more)
	}
	var rest []elem
	for range high - low {
		rest = []elem{g.group(append([]elem{one}, rest...), nil)}
	}
	return append(all, rest...)
}

// each calls fn for each element of a rule.
func (g *cfg) each(rule int32, fn func(i int32)) {
	for _, i := range g.rules[rule] {
		for ; i >= 0; i++ {
			fn(i)
			if g.elems[i].last {
				break
			}
		}
	}
}

// recursive returns the rules that contain themselves, and, by index, the elements of those that do so before their end, so
// that stacks grow.
func (g *cfg) recursive() (rules []int32, nests []bool) {
	nests = make([]bool, len(g.elems))
	index := make([]int32, len(g.rules)) // in the order in which they are found, from 1
	low := make([]int32, len(g.rules))   // Tarjan's low link
	in := make([]int32, len(g.rules))    // the cycle of a rule, by the index of its first rule; 0 while it is open
	var open []int32
	found := int32(0)
	var visit func(r int32)
	visit = func(r int32) {
		found++
		index[r], low[r] = found, found
		open = append(open, r)
		self := false
		g.each(r, func(i int32) {
			if next := g.elems[i].rule; next >= 0 {
				self = self || next == r
				if index[next] == 0 {
					visit(next)
				}
				if in[next] == 0 {
					low[r] = min(low[r], low[next])
				}
			}
		})
		if low[r] != index[r] {
			return
		}
		n := len(open) - 1
		for open[n] != r {
			n--
		}
		cycle := open[n:]
		open = open[:n]
		for _, member := range cycle {
			in[member] = index[r]
		}
		if len(cycle) == 1 && !self {
			return
		}
		rules = append(rules, cycle...)
		inner := false
		for _, member := range cycle {
			g.each(member, func(i int32) {
				e := g.elems[i]
				inner = inner || e.rule >= 0 && !e.last && in[e.rule] == index[r]
			})
		}
		for _, member := range cycle {
			g.each(member, func(i int32) { nests[i] = inner })
		}
	}
	for r := range g.rules {
		if index[r] == 0 {
			visit(int32(r))
		}
	}
	return rules, nests
}

// nullable reports for each rule whether it matches the empty text.
func (g *cfg) nullable() []bool {
	type alternative struct {
		rule int32
		left int // elements that are not known to match it
	}
	var alternatives []alternative
	users := make([][]int, len(g.rules)) // the alternatives that an element is in
	empty := make([]bool, len(g.rules))
	var found []int32
	mark := func(r int32) {
		if !empty[r] {
			empty[r] = true
			found = append(found, r)
		}
	}
	for r, starts := range g.rules {
		for _, at := range starts {
			if at < 0 {
				mark(int32(r))
				continue
			}
			end := at
			for g.elems[end].rule >= 0 && !g.elems[end].last {
				end++
			}
			if g.elems[end].rule < 0 {
				continue // a terminal
			}
			for i := at; i <= end; i++ {
				users[g.elems[i].rule] = append(users[g.elems[i].rule], len(alternatives))
			}
			alternatives = append(alternatives, alternative{int32(r), int(end - at + 1)})
		}
	}
	for len(found) > 0 {
		r := found[len(found)-1]
		found = found[:len(found)-1]
		for _, a := range users[r] {
			if alternatives[a].left--; alternatives[a].left == 0 {
				mark(alternatives[a].rule)
			}
		}
	}
	return empty
}

// begins reports whether no rule can begin with itself, and all ways down to what rules can begin with are few. llama.cpp
// looks for such rules along every one of these ways, and does not find those that can begin with an element which matches
// the empty text by other rules only.
func (g *cfg) begins() bool {
	const open = -1
	empty := g.nullable()
	steps := make([]int, len(g.rules)) // of all ways down, 0 while not known
	total := 0
	var visit func(r int32) bool
	visit = func(r int32) bool {
		if steps[r] != 0 {
			return steps[r] != open
		}
		steps[r] = open
		sum := 1
		for _, i := range g.rules[r] {
			for ; i >= 0 && g.elems[i].rule >= 0; i++ {
				next := g.elems[i].rule
				if !visit(next) {
					return false
				}
				sum = clamp(sum + steps[next])
				if !empty[next] || g.elems[i].last {
					break
				}
			}
		}
		steps[r] = sum
		total = clamp(total + sum)
		return total <= maxBegins
	}
	for r := range g.rules {
		if !visit(int32(r)) {
			return false
		}
	}
	return true
}
