package constraint

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// schemaCheck walks a value that holds JSON schemas. Every object counts as a schema, so it does not matter where an engine looks
// for them. The members of properties are names, not keywords.
type schemaCheck struct {
	Schemas
	base  string // where the schema at hand begins, to which its references are relative
	nodes int
	spent cost
	edges map[string][]string // from a place in the schema to those that it is the same as
	err   error

	shapes map[string]*shape   // by place; the following are kept for llama.cpp
	names  map[string][]string // of the properties, by the place of what holds them
	counts map[string]int      // of the items of lists, by place
	roots  []string            // places of whole schemas
	bases  map[string]string   // of references, where the schema begins to which they are relative
	alike  map[string]int      // properties by the name that their rule has
	inner  map[string]string   // places of the definitions of inner schemas, by those that they would have at the root
}

func (s *schemaCheck) document(v jsonscan.Value) error {
	s.edges = map[string][]string{}
	s.shapes, s.names, s.counts, s.inner = map[string]*shape{}, map[string][]string{}, map[string]int{}, map[string]string{}
	s.bases = map[string]string{}
	if s.Param == "json_schema" {
		s.begin("#")
	}
	w := jsonscan.WalkOf(v.Raw)
	s.node(&w, "#", schemaNode)
	if s.err == nil && s.Llama {
		s.err = s.ambiguous()
	} else if s.err == nil && s.cyclic() {
		s.err = errCircle
	}
	if s.err != nil {
		return api.Newf(api.InvalidType, "'%s' has a schema that is not accepted: %v.", s.Param, s.err).WithParam(s.Param)
	}
	return nil
}

var errCircle = errors.New("a $ref leads back to itself")

// begin records that a whole schema begins at a place.
func (s *schemaCheck) begin(place string) {
	s.base = place
	s.roots = append(s.roots, place)
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

// spend charges a step of reading that handles some bytes of a place.
func (s *schemaCheck) spend(step, bytes int) bool {
	if err := s.spent.add(cost{work: step + bytes/bytesOfWork}); err != nil {
		return s.fail(err.Error())
	}
	return true
}

func (s *schemaCheck) node(w *jsonscan.Walk, at string, kind nodeKind) bool {
	if len(at) > maxPlace {
		return s.fail("its names, inside one another, are too long")
	}
	if !s.spend(0, len(at)) {
		return false
	}
	switch w.Kind() {
	case jsonscan.Array:
		if s.nodes++; s.nodes > maxNodes {
			return s.fail("it has too many parts")
		}
		n := 0
		ok := w.Array(func() bool {
			n++
			if kind != dataNode && n > maxChoices {
				return s.fail("a list in it is too long")
			}
			return s.node(w, at+"/"+strconv.Itoa(n-1), kind)
		})
		if kind != dataNode && n > 0 {
			s.counts[at] = n
		}
		return ok
	case jsonscan.Object:
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
			if kind == namesNode {
				s.names[at] = append(s.names[at], string(name))
				if !s.alone(at, name) {
					return s.fail("it has too many names of properties that engines cannot tell apart; use letters and digits of ASCII")
				}
				if as := s.base + "/$defs/" + string(name); strings.HasSuffix(at, "/$defs") && s.inner[as] == "" {
					s.inner[as] = at + "/" + string(name)
				}
			}
			next := schemaNode
			if kind == dataNode {
				next = dataNode
			} else if k := w.Kind(); !s.Lenient && k != jsonscan.Object && k != jsonscan.Bool {
				return s.fail("a schema in it is not an object")
			}
			return s.node(w, at+"/"+string(name), next)
		})
	}
	w.Raw()
	return true
}

var ruleNames = strings.NewReplacer("/properties/", "-", "/anyOf/", "-", "/oneOf/", "-", "/", "-")

// alone counts names that become the same name of a rule in a grammar, where every run of other characters than ASCII letters,
// digits and hyphens is one hyphen, and reports whether they are few enough.
func (s *schemaCheck) alone(at string, name []byte) bool {
	if !s.Llama {
		return true
	}
	var rule []byte
	for _, c := range []byte(ruleNames.Replace(at + "/" + string(name))) {
		if c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '-' {
			rule = append(rule, c)
		} else if n := len(rule); n == 0 || rule[n-1] != '_' {
			rule = append(rule, '_')
		}
	}
	if s.alike == nil {
		s.alike = map[string]int{}
	}
	s.alike[string(rule)]++
	return s.alike[string(rule)] <= maxAlike
}

// kinds are the JSON types that a keyword's value may have.
type kinds struct {
	of  [3]jsonscan.Kind
	say string // as an error names them
}

func (k kinds) holds(kind jsonscan.Kind) bool {
	return slices.Contains(k.of[:], kind) && kind != jsonscan.Absent
}

var (
	aText    = kinds{[3]jsonscan.Kind{jsonscan.String}, "a text"}
	aNumber  = kinds{[3]jsonscan.Kind{jsonscan.Number}, "a number"}
	aList    = kinds{[3]jsonscan.Kind{jsonscan.Array}, "a list"}
	anObject = kinds{[3]jsonscan.Kind{jsonscan.Object}, "an object"}
	aSchema  = kinds{[3]jsonscan.Kind{jsonscan.Object, jsonscan.Bool}, "a schema"}

	// keywords are those that engines read without looking at the type first.
	keywords = map[string]kinds{
		"type": {[3]jsonscan.Kind{jsonscan.String, jsonscan.Array}, "a text or a list"}, "$ref": aText, "pattern": aText,
		"format":    {[3]jsonscan.Kind{jsonscan.String, jsonscan.Object}, "a text"}, // an object: the format of Anthropic's dialect
		"minLength": aNumber, "maxLength": aNumber, "minItems": aNumber, "maxItems": aNumber,
		"minimum": aNumber, "maximum": aNumber, "exclusiveMinimum": aNumber, "exclusiveMaximum": aNumber,
		"enum": aList, "allOf": aList, "anyOf": aList, "oneOf": aList,
		"prefixItems": aList, "items": {[3]jsonscan.Kind{jsonscan.Object, jsonscan.Array, jsonscan.Bool}, "a schema or a list"},
		"additionalProperties": aSchema, "not": aSchema, "contains": aSchema, "if": aSchema, "then": aSchema, "else": aSchema,
		"properties": anObject, "patternProperties": anObject, "$defs": anObject, "definitions": anObject,
		"schema": anObject, "json_schema": anObject, // where formats hold the schema
	}
)

// schema checks the members of a schema.
func (s *schemaCheck) schema(w *jsonscan.Walk, at string) bool {
	var low, high [4]float64
	for i := range low {
		low[i], high[i] = math.Inf(-1), math.Inf(1)
	}
	about := &shape{}
	s.shapes[at] = about
	begin := w.Offset()
	ok := w.Object(func(name []byte) bool {
		if !s.spend(0, len(at)) {
			return false
		}
		here := at + "/" + string(name)
		if want, known := keywords[string(name)]; known && !s.Lenient && !want.holds(w.Kind()) {
			return s.fail("'" + string(name) + "' is not " + want.say)
		}
		about.note(string(name), *w)
		switch string(name) {
		case "pattern":
			return s.pattern(w)
		case "type":
			return s.types(w, here)
		case "$ref":
			return s.reference(w, at)
		case "allOf", "anyOf", "oneOf":
			return s.alternatives(w, at, here)
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
			return s.node(w, here, namesNode)
		case "enum":
			return s.enum(w)
		case "schema", "parameters", "input_schema":
			if s.base != "" {
				break
			}
			s.begin(here)
			ok := s.node(w, here, schemaNode)
			s.base = ""
			return ok
		case "server_url", "connector_id":
			return s.fail("tools are not called from here")
		case "const", "default", "examples", "example", "input_examples":
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
	about.size = w.Offset() - begin
	if slices.Contains(about.types, "integer") && noWhole(low[2], low[3], high[2], high[3]) {
		return s.fail("no whole number lies within its bounds")
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

// noWhole reports whether llama.cpp finds no whole number from low or above over to high or below under: it cuts fractions off, and
// an exclusive bound counts only where there is no other. Its grammar then has classes such as [4-3].
func noWhole(low, over, high, under float64) bool {
	if low = math.Trunc(low); math.IsInf(low, 0) {
		low = math.Trunc(over) + 1
	}
	if high = math.Trunc(high); math.IsInf(high, 0) {
		high = math.Trunc(under) - 1
	}
	return low > high
}

func (s *schemaCheck) pattern(w *jsonscan.Walk) bool {
	v := w.Raw()
	if v.Kind != jsonscan.String {
		return v.Kind == jsonscan.Object || s.fail("'pattern' is not a text") // in tools, an object may be what an engine passes over
	}
	if !s.Llama {
		return len(v.Raw) <= maxPattern || s.fail("a pattern is too long")
	}
	text := v.String()
	if !s.spend(len(text)/2+classWork*(strings.Count(text, `\p`)+strings.Count(text, `\P`)), 0) {
		return false
	}
	spent, err := checkPattern(text, s.Lenient)
	if err == nil {
		err = s.spent.add(spent)
	}
	return err == nil || s.fail("a pattern is not accepted: "+err.Error())
}

// types checks a type or a list of types: engines read a schema once for each item of the list, and for each that is no text
// once more whatever its type.
func (s *schemaCheck) types(w *jsonscan.Walk, at string) bool {
	if w.Kind() != jsonscan.Array || !s.Llama {
		return s.node(w, at, schemaNode)
	}
	seen := map[string]bool{}
	return w.Array(func() bool {
		text := w.Kind() == jsonscan.String
		v := w.Raw()
		if !text || seen[v.String()] || len(seen) == maxTypes {
			return s.fail("a list of types has something other than names of types, or one twice")
		}
		seen[v.String()] = true
		return true
	})
}

// reference notes what the $ref of the schema at a place leads to.
func (s *schemaCheck) reference(w *jsonscan.Walk, at string) bool {
	v := w.Raw()
	if v.Kind != jsonscan.String {
		return s.fail("a $ref is not a text")
	}
	ref := v.String()
	if ref != "#" && !strings.HasPrefix(ref, "#/") {
		return s.fail("a $ref does not begin with #/")
	}
	if !s.spend(1, 4*(len(s.base)+len(ref))) {
		return false
	}
	place := s.base + ref[1:]
	s.edges[at] = append(s.edges[at], place, unescaped.Replace(place))
	s.shapes[at].ref = place
	s.bases[place] = s.base
	return true
}

// alternatives checks the schemas of allOf, anyOf and oneOf, and notes that the
// schema at a place is the same as each.
func (s *schemaCheck) alternatives(w *jsonscan.Walk, at, here string) bool {
	if !s.node(w, here, schemaNode) {
		return false
	}
	for i := range s.counts[here] {
		if !s.spend(edgeWork, len(here)) {
			return false
		}
		s.edges[at] = append(s.edges[at], here+"/"+strconv.Itoa(i))
	}
	return true
}

func (s *schemaCheck) enum(w *jsonscan.Walk) bool {
	v := w.Raw()
	if v.Kind != jsonscan.Array {
		return true
	}
	n := 0
	list := jsonscan.WalkOf(v.Raw)
	return list.Array(func() bool { n++; return n <= maxChoices }) || s.fail("an enum has too many values")
}

// cutBound overwrites a bound that excludes nearly nothing, such as the largest whole number of JavaScript in the schemas of
// Claude Code and of zod, with the largest one of its sign that engines take. It reports whether that fits.
func cutBound(number []byte) bool {
	text := strconv.AppendInt(nil, maxBound-1, 10)
	if number[0] == '-' {
		text = append([]byte("-"), text...)
	}
	if len(text) > len(number) {
		return false
	}
	for i := copy(number, text); i < len(number); i++ {
		number[i] = ' '
	}
	return true
}

// bound reads the value of a keyword that bounds a number from below or above.
func (s *schemaCheck) bound(w *jsonscan.Walk, low, high *float64, upper bool, most float64) bool {
	v := w.Raw()
	if v.Kind != jsonscan.Number {
		return true // in tools: what an engine passes over
	}
	f, err := strconv.ParseFloat(string(v.Raw), 64)
	if err != nil || !math.IsInf(most, 1) && (f < 0 || f > most || f != math.Trunc(f)) {
		return s.fail("a length or a count is out of range")
	}
	if math.Abs(f) >= maxBound {
		if upper != (f > 0) || !cutBound(v.Raw) {
			return s.fail("a number is too large")
		}
		f = math.Copysign(maxBound-1, f)
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
		if slices.ContainsFunc(s.edges[at], visit) {
			return true
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
