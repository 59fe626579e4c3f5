package bodycheck

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// checkGrammar bounds a grammar in GBNF before an engine reads it. It does not
// replace the engine's parser: what that refuses may pass here.
func checkGrammar(text string) error {
	g := gbnf{rules: map[string]*gbnfRule{}}
	if err := g.read(text); err != nil {
		return err
	}
	for name := range g.rules {
		if g.weight(name) > maxRepeats {
			return errors.New("its counted repetitions make too many copies")
		}
	}
	return nil
}

// gbnf is what of a grammar decides how much it costs.
type gbnf struct {
	rules map[string]*gbnfRule
	cur   *gbnfRule
	spent cost
}

// gbnfRule is a rule: how often its parts are repeated at most, and the rules
// that it names with how often they are.
type gbnfRule struct {
	copies   int
	uses     map[string]int
	branches int
	state    int // of weight: 0 not begun, 1 under way, 2 done
	weight   int
}

var (
	gbnfName  = regexp.MustCompile(`^[A-Za-z0-9-]+`)
	gbnfCount = regexp.MustCompile(`^\{\s*([0-9]{1,9})?\s*(,\s*([0-9]{1,9})?\s*)?\}`)
	gbnfIs    = regexp.MustCompile(`^\s*::=`)
)

// item is a part of a rule that a quantifier may follow.
type item struct {
	copies int            // inside it
	uses   map[string]int // inside it
}

func (i *item) add(o item, times int) {
	i.copies = max(i.copies, clamp(o.copies*times))
	for name, n := range o.uses {
		if i.uses == nil {
			i.uses = map[string]int{}
		}
		i.uses[name] = max(i.uses[name], clamp(n*times))
	}
}

// clamp keeps products from growing beyond what any limit needs.
func clamp(n int) int { return min(n, math.MaxInt32) }

func (g *gbnf) read(text string) error {
	stack := []item{{copies: 1}} // the rule and the groups that are open
	last, has := item{}, false   // what a quantifier would follow
	settle := func(times int) {
		if has {
			stack[len(stack)-1].add(last, times)
		}
		last, has = item{}, false
	}
	finish := func() {
		settle(1)
		if g.cur != nil {
			g.cur.copies, g.cur.uses = stack[0].copies, stack[0].uses
		}
	}
	for i := 0; i < len(text); {
		rest := text[i:]
		switch c := text[i]; c {
		case ' ', '\t', '\r', '\n':
			i++
		case '#':
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			i += n
		case '"', '[', '<':
			settle(1)
			n, err := gbnfAtom(rest, map[byte]byte{'"': '"', '[': ']', '<': '>'}[c])
			if err != nil {
				return err
			}
			if c == '[' && n > maxClass {
				return errors.New("a character class is too long")
			}
			last, has = item{copies: 1}, true
			i += n
		case '!', '.':
			settle(1)
			last, has = item{copies: 1}, true
			i++
		case '(':
			settle(1)
			if len(stack) > maxGroups {
				return errors.New("groups nest too deep")
			}
			stack = append(stack, item{copies: 1})
			i++
		case ')':
			settle(1)
			if len(stack) == 1 {
				return errors.New("a parenthesis closes nothing")
			}
			last, has = stack[len(stack)-1], true
			stack = stack[:len(stack)-1]
			i++
		case '|':
			settle(1)
			if g.cur != nil {
				if g.cur.branches++; g.cur.branches > maxBranches {
					return errors.New("a rule has too many alternatives")
				}
			}
			i++
		case '*', '+', '?':
			if !has {
				return errors.New("a quantifier stands behind nothing")
			}
			if err := g.spent.add(cost{quantifiers: 1}); err != nil {
				return err
			}
			i++
		case '{':
			m := gbnfCount.FindStringSubmatch(rest)
			if m == nil || !has {
				return errors.New("a repetition is malformed")
			}
			low, _ := strconv.Atoi(m[1])
			high := low
			if m[2] != "" && m[3] != "" {
				high, _ = strconv.Atoi(m[3])
			}
			if high < low {
				return errors.New("a repetition's maximum is below its minimum")
			}
			if err := g.spent.add(cost{quantifiers: 1, copies: high}); err != nil {
				return err
			}
			repeated := item{}
			repeated.add(last, max(high, 1))
			repeated.copies = max(repeated.copies, high)
			last = repeated
			if last.copies > maxRepeats {
				return errors.New("its counted repetitions make too many copies")
			}
			i += len(m[0])
		default:
			name := gbnfName.FindString(rest)
			if name == "" {
				return errors.New("it has a character that begins nothing")
			}
			i += len(name)
			if is := gbnfIs.FindString(text[i:]); is != "" {
				finish()
				if len(stack) > 1 {
					return errors.New("a parenthesis is not closed")
				}
				if len(g.rules) == maxRules {
					return errors.New("it has too many rules")
				}
				stack = []item{{copies: 1}}
				g.cur = &gbnfRule{}
				g.rules[name] = g.cur
				i += len(is)
				continue
			}
			settle(1)
			last, has = item{copies: 1, uses: map[string]int{name: 1}}, true
		}
	}
	if len(stack) > 1 {
		return errors.New("a parenthesis is not closed")
	}
	finish()
	return nil
}

// gbnfAtom is the length of a literal, a class or a token.
func gbnfAtom(text string, closing byte) (int, error) {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case closing:
			return i + 1, nil
		case '\n':
			if closing == '>' {
				return 0, errors.New("a token is not closed")
			}
		}
	}
	return 0, errors.New("a literal or a class is not closed")
}

// weight is how many copies a rule's counted repetitions make, those of the
// rules that it names included. A rule inside itself counts once.
func (g *gbnf) weight(name string) int {
	r := g.rules[name]
	if r == nil || r.state == 1 {
		return 1
	}
	if r.state == 2 {
		return r.weight
	}
	r.state = 1
	w := max(r.copies, 1)
	for use, n := range r.uses {
		w = max(w, clamp(n*g.weight(use)))
	}
	r.state, r.weight = 2, w
	return w
}
