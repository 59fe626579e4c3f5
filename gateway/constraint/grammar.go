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

// checkGrammar bounds a grammar in GBNF before an engine reads it. It accepts some grammars that the engine's parser
// refuses.
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
			return errTooManyCopies
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
	state    int // of weight: 0 not begun, 1 in progress, 2 done
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

// alternatives returns all alternatives of a rule or group.
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

// read adds the rules of a grammar.
func (g *gbnf) read(text string) error {
	r := gbnfReader{gbnf: g, rest: text, open: []item{{copies: 1}}}
	for r.rest != "" {
		if err := r.next(); err != nil {
			return err
		}
	}
	if len(r.open) > 1 {
		return errOpenGroup
	}
	r.endRule()
	return nil
}

var (
	errOpenGroup     = errors.New("a parenthesis is not closed")
	errTooManyRules  = errors.New("it has too many rules")
	errTooManyCopies = errors.New("its counted repetitions make too many copies")
)

// gbnfReader reads a grammar from its beginning to its end.
type gbnfReader struct {
	*gbnf
	rest string // still to be read
	open []item // the rule and its groups that are not closed
	last item   // what a quantifier would follow
	has  bool   // there is such an item
}

// next reads one part of a grammar.
func (r *gbnfReader) next() error {
	switch c := r.rest[0]; c {
	case ' ', '\t', '\r', '\n':
		r.skip(1)
	case '#':
		n := strings.IndexAny(r.rest, "\r\n")
		if n < 0 {
			n = len(r.rest)
		}
		r.skip(n)
	case '"':
		return r.terminals('"')
	case '[':
		return r.terminals(']')
	case '<':
		return r.terminals('>')
	case '!': // Such a token may end within a character, and what follows in the grammar then fits no token.
		return errors.New("'!' before a token is not accepted; use a character class")
	case '.':
		r.endItem()
		r.last, r.has = item{copies: 1, parts: r.atom(".")}, true
		r.skip(1)
	case '(':
		r.endItem()
		if len(r.open) > maxGroups {
			return errors.New("groups nest too deep")
		}
		r.open = append(r.open, item{copies: 1})
		r.skip(1)
	case ')':
		return r.endGroup()
	case '|':
		return r.alternative()
	case '*':
		return r.quantifier(0, -1)
	case '+':
		return r.quantifier(1, -1)
	case '?':
		return r.quantifier(0, 1)
	case '{':
		return r.repetition()
	default:
		return r.named()
	}
	return nil
}

func (r *gbnfReader) skip(n int) { r.rest = r.rest[n:] }

// endItem adds the last item to what is open: no quantifier follows it.
func (r *gbnfReader) endItem() {
	if r.has {
		r.open[len(r.open)-1].add(r.last, 1)
	}
	r.last, r.has = item{}, false
}

// endRule defines the rule that was read.
func (r *gbnfReader) endRule() {
	r.endItem()
	if r.cur != nil {
		r.cur.copies, r.cur.uses = r.open[0].copies, r.open[0].uses
		r.define(r.cur.named, r.open[0].alternatives()...)
	}
}

// terminals reads a literal, a character class or a token.
func (r *gbnfReader) terminals(closing byte) error {
	r.endItem()
	n, err := gbnfAtom(r.rest, closing)
	if err != nil {
		return err
	}
	text := r.rest[:n]
	if closing == ']' && n > maxClass {
		return errors.New("a character class is too long")
	}
	if r.literals += n; r.literals > maxLiterals {
		return errors.New("its literals and character classes are too long, taken together")
	}
	if closing == '>' && !thinkToken.MatchString(text) {
		return errors.New("only the tokens around thinking may be named; write the text of others as a literal")
	}
	r.last, r.has = item{copies: 1, parts: r.atom(text)}, true
	if r.blocked {
		return errors.New("it has a character, or a class of characters, that no text can hold")
	}
	r.skip(n)
	return nil
}

// endGroup closes a group, which a quantifier may follow.
func (r *gbnfReader) endGroup() error {
	r.endItem()
	if len(r.open) == 1 {
		return errors.New("a parenthesis closes nothing")
	}
	r.last, r.has = r.open[len(r.open)-1], true
	r.last.parts, r.last.before = []elem{r.group(r.last.alternatives()...)}, nil
	r.open = r.open[:len(r.open)-1]
	r.skip(1)
	return nil
}

// alternative begins the next alternative of what is open.
func (r *gbnfReader) alternative() error {
	r.endItem()
	top := &r.open[len(r.open)-1]
	top.parts, top.before = nil, top.alternatives()
	if r.cur != nil {
		if r.cur.branches++; r.cur.branches > maxBranches {
			return errors.New("a rule has too many alternatives")
		}
	}
	r.skip(1)
	return nil
}

// quantifier repeats the last item; high is -1 for no limit.
func (r *gbnfReader) quantifier(low, high int) error {
	if !r.has {
		return errors.New("a quantifier stands behind nothing")
	}
	if err := r.spent.add(cost{quantifiers: 1}); err != nil {
		return err
	}
	r.last.parts = r.repeat(r.last.parts, low, high)
	r.skip(1)
	return nil
}

// repetition reads a counted repetition of the last item, such as {2,5}.
func (r *gbnfReader) repetition() error {
	m := gbnfCount.FindStringSubmatch(r.rest)
	if m == nil || !r.has {
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
	if err := r.spent.add(cost{quantifiers: 1, copies: clamp(high * max(len(r.last.parts), 1))}); err != nil {
		return err
	}
	repeated := item{}
	repeated.add(r.last, max(high, 1))
	repeated.copies = max(repeated.copies, high)
	if repeated.copies > maxRepeats {
		return errTooManyCopies
	}
	if m[2] != "" && m[3] == "" {
		high = -1
	}
	repeated.parts = r.repeat(r.last.parts, low, high)
	r.last = repeated
	r.skip(len(m[0]))
	return nil
}

// named reads a name: of the rule that begins, or of one that is used.
func (r *gbnfReader) named() error {
	name := r.rest[:gbnfName(r.rest)]
	if name == "" {
		return errors.New("it has a character that begins nothing")
	}
	r.skip(len(name))
	if after, ok := strings.CutPrefix(strings.TrimLeft(r.rest, " \t\r\n"), "::="); ok {
		r.endRule()
		if len(r.open) > 1 {
			return errOpenGroup
		}
		if len(r.rules) == maxRules {
			return errTooManyRules
		}
		r.open = []item{{copies: 1}}
		r.cur = &gbnfRule{named: r.name(name)}
		r.rules[name] = r.cur
		r.rest = after
		return nil
	}
	r.endItem()
	if len(r.names) > maxRules {
		return errTooManyRules
	}
	r.last, r.has = item{copies: 1, uses: map[string]int{name: 1}, parts: []elem{r.name(name)}}, true
	return nil
}

// name returns the element for the rule with a name.
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

// legible is terminal for symbols that must include at least one character besides NUL. An engine that has no character to continue
// with takes any token, and crashes if that token ends the answer.
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

// weight returns how many copies a rule's counted repetitions make, including those of the rules that it names. A rule inside
// itself counts once.
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
