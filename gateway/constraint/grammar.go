package constraint

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// checkGrammar bounds a grammar in GBNF before an engine reads it. It does not
// replace the engine's parser: what that refuses may pass here.
func checkGrammar(text string) error {
	g := newGrammar()
	if strings.IndexByte(text, 0) >= 0 {
		return errors.New("it has a NUL character") // where it ends for the engine
	}
	if err := g.read(text); err != nil {
		return err
	}
	for name := range g.rules {
		if g.weight(name) > maxRepeats {
			return errors.New("its counted repetitions make too many copies")
		}
	}
	_, err := g.check(true, g.name("root").rule)
	return err
}

func newGrammar() *gbnf { return &gbnf{rules: map[string]*gbnfRule{}, names: map[string]elem{}} }

// gbnf holds the parts of a grammar that determine its cost.
type gbnf struct {
	cfg
	names map[string]elem
	rules map[string]*gbnfRule
	cur   *gbnfRule
	spent cost

	literals int  // bytes of literals, character classes and tokens
	blocked  bool // a terminal stands for no character that a text can hold
}

// gbnfRule is a rule: how often its parts are repeated at most, and the rules
// that it names with how often they are.
type gbnfRule struct {
	named    elem // what stands for it
	copies   int
	uses     map[string]int
	branches int
	state    int // of weight: 0 not begun, 1 under way, 2 done
	weight   int
}

// thinkToken matches the tokens that a grammar may ask for. Others may be unknown to the model, or end the answer, which the
// engine allows only where the grammar ends.
var thinkToken = regexp.MustCompile(`^</?(think|thinking|thought|reasoning)>$`)

var gbnfCount = regexp.MustCompile(`^\{\s*([0-9]{1,9})?\s*(,\s*([0-9]{1,9})?\s*)?\}`)

// gbnfName is the length of a rule's name.
func gbnfName(text string) int {
	for i, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return i
		}
	}
	return len(text)
}

// item is a part of a rule that a quantifier may follow, or a rule or group that is still being read.
type item struct {
	copies int            // inside it
	uses   map[string]int // inside it
	parts  []elem         // the item, or the last alternative of what is open
	before [][]elem       // the alternatives before
}

// alternatives are those of what was open.
func (i *item) alternatives() [][]elem { return append(i.before, i.parts) }

func (i *item) add(o item, times int) {
	i.copies = max(i.copies, clamp(o.copies*times))
	if times == 1 && len(o.uses) > len(i.uses) {
		i.uses, o.uses = o.uses, i.uses // the fewer are copied
	}
	for name, n := range o.uses {
		if i.uses == nil {
			i.uses = map[string]int{}
		}
		i.uses[name] = max(i.uses[name], clamp(n*times))
	}
	i.parts = append(i.parts, o.parts...)
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
			g.define(g.cur.named, stack[0].alternatives()...)
		}
	}
	for i := 0; i < len(text); {
		rest := text[i:]
		switch c := text[i]; c {
		case ' ', '\t', '\r', '\n':
			i++
		case '#':
			n := strings.IndexAny(rest, "\r\n")
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
			if g.literals += n; g.literals > maxLiterals {
				return errors.New("its literals and character classes are too long, taken together")
			}
			if c == '<' && !thinkToken.MatchString(rest[:n]) {
				return errors.New("only the tokens around thinking may be named; write the text of others as a literal")
			}
			last, has = item{copies: 1, parts: g.atom(rest[:n])}, true
			if g.blocked {
				return errors.New("it has a character, or a class of characters, that no text can hold")
			}
			i += n
		case '!': // Such a token may end within a character, and what follows in the grammar then fits no token.
			return errors.New("'!' before a token is not accepted; use a character class")
		case '.':
			settle(1)
			last, has = item{copies: 1, parts: g.atom(".")}, true
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
			last.parts, last.before = []elem{g.group(last.alternatives()...)}, nil
			stack = stack[:len(stack)-1]
			i++
		case '|':
			settle(1)
			top := &stack[len(stack)-1]
			top.parts, top.before = nil, top.alternatives()
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
			low, high := 0, -1
			if c == '+' {
				low = 1
			} else if c == '?' {
				high = 1
			}
			last.parts = g.repeat(last.parts, low, high)
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
			if err := g.spent.add(cost{quantifiers: 1, copies: clamp(high * max(len(last.parts), 1))}); err != nil {
				return err
			}
			repeated := item{}
			repeated.add(last, max(high, 1))
			repeated.copies = max(repeated.copies, high)
			if repeated.copies > maxRepeats {
				return errors.New("its counted repetitions make too many copies")
			}
			if m[2] != "" && m[3] == "" {
				high = -1
			}
			repeated.parts = g.repeat(last.parts, low, high)
			last = repeated
			i += len(m[0])
		default:
			name := rest[:gbnfName(rest)]
			if name == "" {
				return errors.New("it has a character that begins nothing")
			}
			i += len(name)
			if after, ok := strings.CutPrefix(strings.TrimLeft(text[i:], " \t\r\n"), "::="); ok {
				finish()
				if len(stack) > 1 {
					return errors.New("a parenthesis is not closed")
				}
				if len(g.rules) == maxRules {
					return errors.New("it has too many rules")
				}
				stack = []item{{copies: 1}}
				g.cur = &gbnfRule{named: g.name(name)}
				g.rules[name] = g.cur
				i = len(text) - len(after)
				continue
			}
			settle(1)
			if len(g.names) > maxRules {
				return errors.New("it has too many rules")
			}
			last, has = item{copies: 1, uses: map[string]int{name: 1}, parts: []elem{g.name(name)}}, true
		}
	}
	if len(stack) > 1 {
		return errors.New("a parenthesis is not closed")
	}
	finish()
	return nil
}

// name returns what stands for the rule of a name.
func (g *gbnf) name(name string) elem {
	r, ok := g.names[name]
	if !ok {
		r = g.rule()
		g.names[name] = r
	}
	return r
}

// atom returns the terminals of a literal, a class or a token. A token may be
// any text.
func (g *gbnf) atom(text string) (parts []elem) {
	switch text[0] {
	case '"':
		for i := 1; i < len(text)-1; {
			c, n := gbnfChar(text[i:])
			parts = append(parts, g.legible(text[i:i+n], func() []span { return []span{{c, c}} }))
			i += n
		}
		return parts
	case '[':
		if text == "[]" || text == "[^]" {
			return nil // as for the engine
		}
		class, ok := gbnfClass(text[1 : len(text)-1])
		g.blocked = g.blocked || !ok
		return []elem{g.legible(text, func() []span { return class })}
	}
	return []elem{g.terminal(".", func() []span { return []span{{0, unicode.MaxRune}} })}
}

// legible is terminal for what has to stand for at least one character besides NUL. Where an engine has no character to go on
// with, it takes any token, and ends if that is one that ends the answer.
func (g *gbnf) legible(text string, spans func() []span) elem {
	e := g.terminal(text, spans)
	readable := func(s span) bool { return max(s.low, 1) <= min(s.high, unicode.MaxRune) }
	if strings.HasPrefix(text, "[^") {
		readable = reachable
	}
	g.blocked = g.blocked || !slices.ContainsFunc(g.sets[e.set], readable)
	return e
}

// reachable reports whether llama.cpp can begin a character of s where s is what a negated class leaves. Many characters have no
// token of their own but one for each byte, and it refuses the first byte unless the class leaves all characters that begin with
// that (llama_grammar_match_partial_char).
func reachable(s span) bool {
	if max(s.low, 1) <= min(s.high, unicode.MaxASCII) {
		return true
	}
	for _, encoded := range []struct{ low, high, size rune }{{0x80, 0x7FF, 0x40}, {0x800, 0xFFFF, 0x1000}, {0x10000, 0xFFFFF, 0x40000}} {
		for from := encoded.low; from < encoded.high; {
			to := from - from%encoded.size + encoded.size - 1
			if s.low <= from && to <= s.high {
				return true
			}
			from = to + 1
		}
	}
	return false
}

// gbnfClass returns the symbols of a character class. It is not ok with a range that ends before it begins: llama.cpp takes the first
// byte of a character for one in that range, and no second one (llama_grammar_match_partial_char).
func gbnfClass(text string) (spans []span, ok bool) {
	ok = true
	not := text[0] == '^'
	if not {
		text = text[1:]
	}
	for len(text) > 0 {
		low, n := gbnfChar(text)
		text = text[n:]
		high := low
		if len(text) > 1 && text[0] == '-' {
			high, n = gbnfChar(text[1:])
			text = text[1+n:]
		}
		if low <= high {
			spans = append(spans, span{low, high})
		} else {
			ok = false
		}
	}
	return tidy(spans, not), ok
}

// gbnfChar reads a character of a literal or a class, which is n bytes long.
func gbnfChar(text string) (c rune, n int) {
	if text[0] != '\\' || len(text) < 2 {
		return utf8.DecodeRuneInString(text)
	}
	switch c := text[1]; c {
	case 'x', 'u', 'U':
		n := min(2+map[byte]int{'x': 2, 'u': 4, 'U': 8}[c], len(text))
		v, _ := strconv.ParseUint(text[2:n], 16, 31)
		return rune(v), n
	case 't':
		return '\t', 2
	case 'r':
		return '\r', 2
	case 'n':
		return '\n', 2
	}
	return rune(text[1]), 2 // never wider: the engine refuses others
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
