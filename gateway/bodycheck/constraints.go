package bodycheck

import (
	"errors"
	"math"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"reveille/gateway/peek"
	"reveille/gateway/wire"
)

// Limits of schemas and grammars. Engines turn a schema into a grammar and try
// the grammar on every token of their vocabulary.
const (
	maxConstraint  = 256 << 10 // bytes of all tools, of a schema, of a grammar
	maxLevels      = 100       // of nesting of a schema
	maxNodes       = 4000      // objects and lists of a schema
	maxProperties  = 200       // of an object
	maxChoices     = 500       // values of an enum, alternatives of a schema
	maxName        = 256       // bytes of a property's name
	maxPattern     = 1024      // bytes of a pattern
	maxPatternDeep = 16        // groups inside one another
	maxRepeats     = 512       // copies that counted repetitions inside one another make
	maxCopies      = 16 << 10  // copies that all counted repetitions and lengths of a document make
	maxQuantifiers = 256       // quantifiers of a grammar, or of all patterns of a document
	maxRules       = 1000      // of a grammar
	maxGroups      = 64        // inside one another
	maxBranches    = 256       // alternatives of a rule
	maxClass       = 512       // bytes of a character class
	maxBound       = 1e15      // of a number: llama.cpp's converter does not end on those of more digits
)

// cost is what parts that an engine handles one by one add up to.
type cost struct {
	quantifiers int // each may be left out or go on: an engine keeps all that are possible side by side
	copies      int // of what is repeated
}

// add adds up a document's cost and refuses more than engines bear.
func (c *cost) add(more cost) error {
	c.quantifiers += more.quantifiers
	c.copies = clamp(c.copies + clamp(more.copies))
	if c.quantifiers > maxQuantifiers || c.copies > maxCopies {
		return errors.New("its repetitions are too many, taken together")
	}
	return nil
}

// costOf is the cost of a regular expression.
func costOf(re *syntax.Regexp) (c cost) {
	switch re.Op {
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		c.quantifiers++
	case syntax.OpRepeat:
		c.quantifiers++
		c.copies += max(re.Min, re.Max)
	}
	for _, sub := range re.Sub {
		part := costOf(sub)
		c.quantifiers += part.quantifiers
		c.copies = clamp(c.copies + part.copies)
	}
	return c
}

// constraints checks the members that constrain what a model may say.
func (c *Check) constraints(model func() Model) error {
	if v := c.values[toolsSlot]; !v.Empty() {
		c.Constrained = true
		if e := tooLarge("tools", v); e != nil {
			return e
		}
		s := schemaCheck{param: "tools", llama: model().Llama, lenient: true}
		if e := s.document(v); e != nil {
			return e
		}
	}
	for _, at := range [...]struct {
		slot  slot
		param string
	}{{formatSlot, "response_format"}, {schemaSlot, "json_schema"}, {textSlot, "text"}, {outputSlot, "output_config"}} {
		v := c.values[at.slot]
		if !v.Set() || v.Kind != peek.Object {
			continue
		}
		if at.slot == schemaSlot || hasSchema(v) {
			c.Constrained = true
		}
		if e := tooLarge(at.param, v); e != nil {
			return e
		}
		s := schemaCheck{param: at.param, llama: model().Llama}
		if e := s.document(v); e != nil {
			return e
		}
	}
	if v := c.values[grammarSlot]; v.Set() && !v.Empty() {
		c.Constrained = true
		if e := tooLarge("grammar", v); e != nil {
			return e
		}
		if err := checkGrammar(v.String()); err != nil {
			return wire.Newf(wire.InvalidType, "'grammar' is not accepted: %v.", err).With("grammar")
		}
	}
	return nil
}

// hasSchema reports whether a format is more than a plain text.
func hasSchema(v peek.Value) bool {
	plain := false
	w := peek.WalkOf(v.Raw)
	w.Object(func(name []byte) bool {
		if string(name) == "type" {
			plain = oneOf(w.Raw(), []string{"text"})
		}
		return true
	})
	return !plain
}

func tooLarge(param string, v peek.Value) *wire.Error {
	if len(v.Raw) > maxConstraint || v.Depth() > maxLevels {
		return wire.Newf(wire.InvalidType, "'%s' is too large; at most %d bytes and %d levels are accepted.", param, maxConstraint, maxLevels).With(param)
	}
	return nil
}

// schemaCheck walks whatever holds JSON schemas. Every object counts as a
// schema, so that it does not matter where an engine looks for them; what stands
// under properties, which name no keywords, is told apart.
type schemaCheck struct {
	param   string
	llama   bool
	lenient bool // forms that engines pass over are accepted

	base  string // where the schema at hand begins, to which its references are relative
	nodes int
	spent cost
	edges map[string][]string // from a place in the schema to those that it is the same as
	err   error
}

func (s *schemaCheck) document(v peek.Value) error {
	s.edges = map[string][]string{}
	if s.param == "json_schema" {
		s.base = "#"
	}
	w := peek.WalkOf(v.Raw)
	s.node(&w, "#", schemaNode)
	if s.err == nil && s.cyclic() {
		s.err = errors.New("a $ref leads back to itself")
	}
	if s.err != nil {
		return wire.Newf(wire.InvalidType, "'%s' has a schema that is not accepted: %v.", s.param, s.err).With(s.param)
	}
	return nil
}

// nodeKind says how the members of an object are to be read.
type nodeKind uint8

const (
	schemaNode nodeKind = iota
	namesNode           // members are named by the client: properties, $defs
	dataNode            // values, not schemas: enum, const, default, examples
)

func (s *schemaCheck) fail(text string) bool {
	if s.err == nil {
		s.err = errors.New(text)
	}
	return false
}

func (s *schemaCheck) node(w *peek.Walk, at string, kind nodeKind) bool {
	switch w.Kind() {
	case peek.Array:
		if s.nodes++; s.nodes > maxNodes {
			return s.fail("it has too many parts")
		}
		i := 0
		return w.Array(func() bool {
			i++
			if kind != dataNode && i > maxChoices {
				return s.fail("a list in it is too long")
			}
			return s.node(w, at+"/"+strconv.Itoa(i-1), kind)
		})
	case peek.Object:
		if s.nodes++; s.nodes > maxNodes {
			return s.fail("it has too many parts")
		}
		if kind == schemaNode {
			return s.schema(w, at)
		}
		n := 0
		return w.Object(func(name []byte) bool {
			if n++; kind == namesNode && (n > maxProperties || len(name) > maxName) {
				return s.fail("it has too many properties, or too long a name of one")
			}
			next := schemaNode
			if kind == dataNode {
				next = dataNode
			}
			return s.node(w, at+"/"+string(name), next)
		})
	}
	w.Raw()
	return true
}

// schema checks the members of a schema.
func (s *schemaCheck) schema(w *peek.Walk, at string) bool {
	var low, high [4]float64
	for i := range low {
		low[i], high[i] = math.Inf(-1), math.Inf(1)
	}
	ok := w.Object(func(name []byte) bool {
		here := at + "/" + string(name)
		switch string(name) {
		case "pattern":
			v := w.Raw()
			if v.Kind != peek.String {
				return v.Kind == peek.Object || s.fail("a pattern is not a text") // a property called pattern
			}
			if s.llama {
				spent, err := checkPattern(v.String(), s.lenient)
				if err == nil {
					err = s.spent.add(spent)
				}
				if err != nil {
					return s.fail("a pattern is not accepted: " + err.Error())
				}
			} else if len(v.Raw) > maxPattern {
				return s.fail("a pattern is too long")
			}
			return true
		case "$ref":
			v := w.Raw()
			if v.Kind != peek.String {
				return s.fail("a $ref is not a text")
			}
			ref := v.String()
			if ref != "#" && !strings.HasPrefix(ref, "#/") {
				return s.fail("a $ref does not begin with #/")
			}
			s.edges[at] = append(s.edges[at], s.base+strings.NewReplacer("~1", "/", "~0", "~").Replace(ref[1:]))
			return true
		case "allOf", "anyOf", "oneOf":
			if w.Kind() == peek.Array {
				i := 0
				copied := *w
				copied.Array(func() bool { s.edges[at] = append(s.edges[at], here+"/"+strconv.Itoa(i)); i++; return i <= maxChoices })
			}
			return s.node(w, here, schemaNode)
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
			return s.node(w, here, namesNode)
		case "enum":
			v := w.Raw()
			if v.Kind == peek.Array {
				n := 0
				list := peek.WalkOf(v.Raw)
				if !list.Array(func() bool { n++; return n <= maxChoices }) {
					return s.fail("an enum has too many values")
				}
			}
			return true
		case "schema", "parameters", "input_schema":
			if s.base != "" {
				break
			}
			s.base = here
			ok := s.node(w, here, schemaNode)
			s.base = ""
			return ok
		case "server_url", "connector_id":
			return s.fail("tools are not called from here")
		case "const", "default", "examples", "example":
			return s.node(w, here, dataNode)
		case "minLength", "maxLength":
			return s.bound(w, &low[0], &high[0], name[1] == 'a', math.MaxInt32)
		case "minItems", "maxItems":
			return s.bound(w, &low[1], &high[1], name[1] == 'a', math.MaxInt32)
		case "minimum", "maximum":
			return s.bound(w, &low[2], &high[2], name[1] == 'a', math.Inf(1))
		case "exclusiveMinimum", "exclusiveMaximum":
			return s.bound(w, &low[3], &high[3], name[10] == 'a', math.Inf(1))
		}
		return s.node(w, here, schemaNode)
	})
	if !ok {
		return false
	}
	low[2], high[2] = max(low[2], low[3]), min(high[2], high[3])
	for i := range low {
		if low[i] > high[i] {
			return s.fail("a minimum is above its maximum")
		}
	}
	for i := range low[:2] { // lengths and counts: each step is a copy
		n := max(low[i], 0)
		if !math.IsInf(high[i], 1) {
			n = high[i]
		}
		if err := s.spent.add(cost{copies: int(n)}); err != nil {
			return s.fail(err.Error())
		}
	}
	return true
}

// bound reads the value of a keyword that bounds a number from below or above.
func (s *schemaCheck) bound(w *peek.Walk, low, high *float64, upper bool, most float64) bool {
	v := w.Raw()
	if v.Kind != peek.Number {
		return true // a property of that name, or what an engine refuses by itself
	}
	f, err := strconv.ParseFloat(string(v.Raw), 64)
	if err != nil || !math.IsInf(most, 1) && (f < 0 || f > most || f != math.Trunc(f)) {
		return s.fail("a length or a count is out of range")
	}
	if math.Abs(f) >= maxBound {
		return s.fail("a number is too large")
	}
	if upper {
		*high = f
	} else {
		*low = f
	}
	return true
}

// cyclic reports whether following references and alternatives, without
// consuming anything of a text, leads back to where it began.
func (s *schemaCheck) cyclic() bool {
	const (
		open = 1
		done = 2
	)
	state := map[string]int{}
	var visit func(at string) bool
	visit = func(at string) bool {
		switch state[at] {
		case open:
			return true
		case done:
			return false
		}
		state[at] = open
		for _, next := range s.edges[at] {
			if visit(next) {
				return true
			}
		}
		state[at] = done
		return false
	}
	for at := range s.edges {
		if visit(at) {
			return true
		}
	}
	return false
}

var (
	lookaround = regexp.MustCompile(`\(\?[^:]`)
	unicodeEsc = regexp.MustCompile(`\\u[0-9a-fA-F]{4}`)
)

// checkPattern accepts what llama.cpp's converter of patterns survives: it
// reads ^…$ byte by byte, loops at a bracket that closes nothing, and reaches
// for what stands before a quantifier without looking whether there is
// something. lenient accepts as well what the converter only refuses itself, or
// passes over.
func checkPattern(p string, lenient bool) (cost, error) {
	if len(p) > maxPattern {
		return cost{}, errors.New("it is too long")
	}
	if len(p) < 2 || p[0] != '^' || p[len(p)-1] != '$' {
		if lenient {
			return cost{}, nil // the converter does not read it
		}
		return cost{}, errors.New("it must begin with ^ and end with $")
	}
	p = p[1 : len(p)-1]
	if lookaround.MatchString(p) {
		if !lenient {
			return cost{}, errors.New("of groups that begin with (? only (?: is understood")
		}
		p = cutLookaround(p)
	}
	if err := converterForms(p, lenient); err != nil {
		return cost{}, err
	}
	// As the converter does, \u00e9 is taken as an escaped letter.
	re, err := syntax.Parse(unicodeEsc.ReplaceAllString(p, "u"), syntax.Perl)
	if err != nil {
		return cost{}, errors.New("it is no regular expression")
	}
	if _, _, err = weigh(re, 0); err != nil {
		return cost{}, err
	}
	return costOf(re), nil
}

// cutLookaround takes out lookarounds as the converter does: up to the
// parenthesis that closes them, classes not looked at.
func cutLookaround(p string) string {
	var b strings.Builder
	for i := 0; i < len(p); {
		switch {
		case p[i] == '\\' && i+1 < len(p):
			b.WriteString(p[i : i+2])
			i += 2
		case strings.HasPrefix(p[i:], "(?") && !strings.HasPrefix(p[i:], "(?:"):
			depth := 0
			for ; i < len(p); i++ {
				if p[i] == '\\' {
					i++
				} else if p[i] == '(' {
					depth++
				} else if p[i] == ')' {
					if depth--; depth == 0 {
						i++
						break
					}
				}
			}
		default:
			b.WriteByte(p[i])
			i++
		}
	}
	return b.String()
}

// converterForms checks the places where the converter and a regular
// expression parser see different things.
func converterForms(p string, lenient bool) error {
	for i := 0; i < len(p); i++ {
		switch c := p[i]; c {
		case '\\':
			if i++; i == len(p) {
				return errors.New("it ends with a backslash")
			}
			if c := p[i]; !lenient && !strings.ContainsRune(`^$.[]()|{}*+?\`, rune(c)) {
				return errors.New("of escapes only those of punctuation are understood: write [0-9] for \\d")
			}
		case '[':
			start := i
			for i++; i < len(p) && p[i] != ']'; i++ {
				if p[i] == '\\' {
					i++
				}
			}
			if i >= len(p) {
				return errors.New("a bracket is not closed")
			}
			if class := p[start+1 : i]; class == "" || class == "^" {
				return errors.New("a character class is empty; a closing bracket in it must be escaped")
			}
		case ']', '}':
			return errors.New("a closing bracket must be escaped")
		case '{':
			end := strings.IndexByte(p[i:], '}')
			if end < 0 || !counted.MatchString(p[i:i+end+1]) {
				return errors.New("a brace must be escaped, or hold counts as {2} or {2,5}")
			}
			i += end
		}
	}
	return nil
}

var counted = regexp.MustCompile(`^\{[0-9]{1,4}(,[0-9]{0,4})?\}$`)

// weigh reports whether a regular expression matches the empty text, and how
// many copies its counted repetitions make of their innermost part.
func weigh(re *syntax.Regexp, depth int) (empty bool, copies int, err error) {
	if depth > 4*maxPatternDeep {
		return false, 0, errors.New("it nests too deep")
	}
	copies = 1
	switch re.Op {
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		if re.Flags&syntax.NonGreedy != 0 {
			return false, 0, errors.New("lazy quantifiers are not understood")
		}
	}
	all := true
	some := false
	for _, sub := range re.Sub {
		e, n, err := weigh(sub, depth+1)
		if err != nil {
			return false, 0, err
		}
		all, some, copies = all && e, some || e, max(copies, n)
	}
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return true, 1, nil
	case syntax.OpConcat, syntax.OpCapture:
		return all, copies, nil
	case syntax.OpAlternate:
		if len(re.Sub) > maxBranches {
			return false, 0, errors.New("it has too many alternatives")
		}
		return some, copies, nil
	case syntax.OpQuest:
		return true, copies, nil
	case syntax.OpStar, syntax.OpPlus:
		if some {
			return false, 0, errors.New("a quantifier stands behind what may be empty")
		}
		return re.Op == syntax.OpStar, copies, nil
	case syntax.OpRepeat:
		n := re.Max
		if n < 0 {
			n = re.Min
		}
		if some && n > 1 {
			return false, 0, errors.New("a quantifier stands behind what may be empty")
		}
		if copies *= max(n, 1); copies > maxRepeats {
			return false, 0, errors.New("it repeats too often")
		}
		return re.Min == 0 || some, copies, nil
	}
	return false, copies, nil
}
