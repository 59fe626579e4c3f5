package constraint

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
)

// llama.cpp keeps a stack for each way in which it can parse the text so far, and tries all ways to continue for each token of its
// vocabulary. [cfg.check] does the same for a few texts that a grammar allows, and refuses the grammar if there are too many ways.
const (
	maxStacks   = 300     // side by side
	maxPaths    = 1 << 19 // that pathLength symbols open
	pathLength  = 16      // symbols, as many as a long token has
	newStack    = 6       // transitions that a new stack costs as much as
	maxWork     = 100_000 // transitions between stacks, some 10 ms; reading a document counts in the same unit
	maxBegins   = 1 << 20 // steps from all rules to what they can begin with
	maxSymbols  = 512     // of a walk
	maxChosen   = 64      // of these, where several could follow
	allChoices  = 48      // in vain, of all recursive rules together
	maxVain     = 4       // in vain, after which a walk ends
	minVain     = 2
	deepChoices = 8  // of a walk, that lead as deep as they can
	forced      = 8  // symbols without a choice count as one choice
	maxTops     = 32 // kinds of terminals that are looked at for the next symbol
	maxSamples  = 8  // ranges of a terminal that are looked at
)

var errWays = errors.New("it is ambiguous: after a few characters it can be read in too many ways; " +
	"let alternatives, and what follows a repetition, begin differently, and no rule with itself")

// stack is the top of a stack and the stack below it. Equal stacks have equal
// numbers; the empty one is 0.
type stack struct{ at, below int32 }

// ways parses by a grammar as llama.cpp does.
type ways struct {
	*cfg
	paths   bool // counts paths as well: symbols are characters
	stacks  []stack
	nests   []bool // by element: it belongs to a rule that contains itself other than at the end
	depth   []int  // by stack: how many such elements it holds
	numbers map[stack]int32
	next    [][]int32 // by stack: those after its terminal is read; nil if not known yet
	seen    []int32   // by stack: the last look that came across it
	look    int32
	work    int
	met     []int32 // by stack: the last turn that led to it
	place   []int32 // by stack: where that turn put it
	turn    int32
	random  *rand.Rand
}

// check refuses a grammar when its roots, or rules that contain themselves, can
// be read in too many ways. paths says that symbols are characters. It returns
// what the check cost.
func (g *cfg) check(paths bool, roots ...int32) (work int, err error) {
	if !g.begins() {
		return 0, errWays
	}
	rules, nests := g.recursive()
	w := ways{cfg: g, paths: paths, nests: nests, numbers: make(map[stack]int32, 1024), work: maxWork, random: rand.New(rand.NewPCG(1, 2))}
	w.push(-1, -1)
	patience := minVain
	if len(rules) > 0 {
		patience = maxVain
	}
	for _, rule := range roots {
		if !w.walk(rule, widest, patience) || !w.walk(rule, deepest, patience) || !w.walk(rule, anyOne, patience) {
			return 0, errWays
		}
	}
	patience = min(max(allChoices/max(len(rules), 1), minVain), maxVain)
	for _, rule := range rules {
		if w.work < maxWork/4 {
			break // many rules, which by themselves are no sign of ambiguity
		}
		if !w.walk(rule, widest, patience) {
			return 0, errWays
		}
	}
	return maxWork - w.work, nil
}

// push returns the number of a stack.
func (w *ways) push(at, below int32) int32 {
	s := stack{at, below}
	n, ok := w.numbers[s]
	if !ok {
		n = int32(len(w.stacks))
		w.numbers[s] = n
		w.stacks = append(w.stacks, s)
		w.next = append(w.next, nil)
		w.work -= newStack
		depth := 0
		if below > 0 {
			depth = w.depth[below]
		}
		if at >= 0 && int(at) < len(w.nests) && w.nests[at] {
			depth++
		}
		w.depth = append(w.depth, depth)
		w.seen, w.met, w.place = append(w.seen, 0), append(w.met, 0), append(w.place, 0)
	}
	return n
}

// settle expands the rules on top of a stack and returns the stacks that then have a terminal on top.
func (w *ways) settle(n int32) []int32 {
	w.look++
	out := make([]int32, 0, 4)
	for todo := []int32{n}; len(todo) > 0 && len(out) <= maxStacks && w.work > 0; {
		n, todo = todo[len(todo)-1], todo[:len(todo)-1]
		if w.seen[n] == w.look {
			continue
		}
		w.seen[n] = w.look
		w.work--
		s := w.stacks[n]
		if n == 0 || w.elems[s.at].rule < 0 {
			out = append(out, n)
			continue
		}
		rest := w.rest(s)
		for _, at := range w.rules[w.elems[s.at].rule] {
			if at < 0 {
				todo = append(todo, rest)
			} else {
				todo = append(todo, w.push(at, rest))
			}
		}
	}
	return out
}

// rest returns the stack without the part on its top.
func (w *ways) rest(s stack) int32 {
	if w.elems[s.at].last {
		return s.below
	}
	return w.push(s.at+1, s.below)
}

// after returns the stacks that follow when the terminal on top is read.
func (w *ways) after(n int32) []int32 {
	if w.next[n] == nil {
		next := w.settle(w.rest(w.stacks[n])) // which may make w.next longer
		w.next[n] = next
	}
	return w.next[n]
}

// aim is what a walk looks for in a symbol that may follow.
type aim uint8

const (
	widest  aim = iota // that it leads to most stacks
	deepest            // first that it leads to the deepest, which other symbols may then leave in many ways
	anyOne
)

// walk reads symbols from a rule on while the stacks become more, and reports
// whether they stay within limits. It stops after too many choices without a result.
func (w *ways) walk(rule int32, by aim, patience int) bool {
	w.elems = append(w.elems, elem{rule: rule, last: true})
	now := w.settle(w.push(int32(len(w.elems)-1), 0))
	count := make([]int, len(now)) // the paths that lead to each stack
	stacks, paths, chosen, since := 0, 0, 0, 0
	for total := 0; total < maxSymbols && chosen < maxChosen && since < forced*patience; total++ {
		if len(now) > maxStacks || w.work <= 0 {
			return false
		}
		if total%pathLength == 0 {
			for i := range count {
				count[i] = 1
			}
		}
		symbols := w.symbols(now)
		if len(symbols) == 0 {
			break
		}
		if len(symbols) > 1 {
			chosen++
			if by != deepest {
				since += forced
			}
		} else {
			since++
		}
		first := w.random.IntN(len(symbols))
		best := w.read(now, count, symbols[first])
		for i := 1; by != anyOne && i < len(symbols); i++ {
			if other := w.read(now, count, symbols[(first+i)%len(symbols)]); other.more(best, by) {
				best = other
			}
		}
		if by == deepest && chosen >= deepChoices {
			by, since = widest, 0
		}
		if now, count = best.stacks, best.count; w.paths && best.paths > maxPaths {
			return false
		}
		if len(now) > stacks || best.paths > paths {
			stacks, paths, since = max(stacks, len(now)), max(paths, best.paths), 0
		}
	}
	return w.work > 0
}

// symbols returns symbols that the stacks can read, one for each choice of
// stacks.
func (w *ways) symbols(now []int32) (symbols []rune) {
	var tops []int32
	for _, n := range now {
		if n != 0 && len(tops) < maxTops {
			if set := w.elems[w.stacks[n].at].set; !slices.Contains(tops, set) {
				tops = append(tops, set)
			}
		}
	}
	var masks []uint64
	for _, set := range tops {
		spans := w.sets[set]
		skip := max(len(spans)/maxSamples, 1)
		for i := w.random.IntN(skip); i < len(spans); i += skip {
			c, mask := spans[i].low, uint64(0)
			for bit, other := range tops {
				w.work--
				if holds(w.sets[other], c) {
					mask |= 1 << bit
				}
			}
			if !slices.Contains(masks, mask) {
				masks, symbols = append(masks, mask), append(symbols, c)
			}
		}
	}
	return symbols
}

func holds(spans []span, c rune) bool {
	_, ok := slices.BinarySearchFunc(spans, c, func(s span, c rune) int {
		if c < s.low {
			return 1
		} else if c > s.high {
			return -1
		}
		return 0
	})
	return ok
}

// reading is the result of reading a symbol.
type reading struct {
	stacks []int32
	count  []int
	paths  int
	grown  int // stacks inside recursion
	depth  int // of the deepest
}

// more reports whether a reading leads to more than another: to stacks inside
// recursion, which are the ones that multiply, to stacks, to paths.
func (r reading) more(other reading, by aim) bool {
	if by == deepest && r.depth != other.depth {
		return r.depth > other.depth
	}
	return cmp.Or(r.grown-other.grown, len(r.stacks)-len(other.stacks), r.paths-other.paths) > 0
}

// read reads a symbol with all stacks.
func (w *ways) read(now []int32, count []int, c rune) (r reading) {
	w.turn++
	w.work -= len(now) / 4
	for i, n := range now {
		if n == 0 || !holds(w.sets[w.elems[w.stacks[n].at].set], c) {
			continue
		}
		for _, next := range w.after(n) {
			w.work--
			if w.met[next] != w.turn {
				w.met[next], w.place[next] = w.turn, int32(len(r.stacks))
				r.stacks, r.count = append(r.stacks, next), append(r.count, 0)
				r.grown += min(w.depth[next], 1)
				r.depth = max(r.depth, w.depth[next])
			}
			place := w.place[next]
			r.count[place] = clamp(r.count[place] + count[i])
			r.paths = clamp(r.paths + count[i])
		}
	}
	return r
}
