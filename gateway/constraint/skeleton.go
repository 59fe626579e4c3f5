package constraint

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"reveille/infra/jsonscan"
)

// shape is the part of a schema that decides in how many ways a text can be parsed. Properties, items and alternatives have shapes
// of their own.
type shape struct {
	size     int    // bytes
	ref      string // the place that it refers to
	types    []string
	values   []string // of const and enum, as JSON
	required map[string]bool
	more     jsonscan.Kind // of additionalProperties
	open     bool          // additionalProperties is true
}

// note records the next member of a schema that is being walked.
func (s *shape) note(name string, w jsonscan.Walk) {
	switch name {
	case "type":
		s.types = textsOf(w)
	case "required":
		s.required = map[string]bool{}
		for _, name := range textsOf(w) {
			s.required[name] = true
		}
	case "const":
		s.values = []string{literal(w.Raw())}
	case "enum":
		s.values = nil
		w.Array(func() bool { s.values = append(s.values, literal(w.Raw())); return true })
	case "additionalProperties":
		if s.more = w.Kind(); s.more == jsonscan.Bool {
			s.open = string(w.Raw().Raw) == "true"
		}
	}
}

// textsOf returns a string, or the strings of a list up to the first array or object: reading those at each level would take
// quadratic time.
func textsOf(w jsonscan.Walk) (list []string) {
	switch w.Kind() {
	case jsonscan.String:
		return []string{w.Raw().String()}
	case jsonscan.Array:
		w.Array(func() bool {
			switch w.Kind() {
			case jsonscan.Array, jsonscan.Object:
				return false
			case jsonscan.String:
				list = append(list, w.Raw().String())
			default:
				w.Raw()
			}
			return true
		})
	}
	return list
}

// literal returns a value as JSON, strings in one spelling.
func literal(v jsonscan.Value) string {
	if v.Kind == jsonscan.String {
		return `"` + v.String()
	}
	return string(v.Raw)
}

// Symbols of a text: punctuation stands for itself, every other value and every
// name is one symbol.
const (
	aTrue, aFalse, aNull = 1, 2, 3
	figures              = 1 << 17
	words                = 1 << 18
	values               = 1 << 19 // objects and lists of const and enum
)

// skeleton turns the shapes of a document into a grammar, as llama.cpp's
// converter does.
type skeleton struct {
	cfg
	*schemaCheck
	placed   map[string]elem   // rules by place
	leads    map[string]string // references by where they lead
	ends     map[string]string // places by where following references from them ends
	any      *elem
	work     int            // of making it, at most maxWork
	copied   int            // bytes of what references lead to
	passed   int            // bytes on the way there
	weighs   map[string]int // visits by place, visiting while they are not known
	visits   int
	referred []string // places that references lead to, once for each spelling
	lost     bool     // a reference leads nowhere
	astray   bool     // a reference may lead an engine to what is no schema
	large    bool     // it has more than maxElems elements, or took too much work
}

// Work of a step, apart from what it takes for the bytes of a place.
const (
	lookWork = 1 // at a place
	partWork = 5 // that makes a part of the skeleton
)

// spend charges a step, and reports whether the limit of work allows it.
func (k *skeleton) spend(step, bytes int) bool {
	k.work += step + bytes/16
	return !k.full()
}

// ambiguous reports schemas that can be read in too many ways.
func (s *schemaCheck) ambiguous() error {
	k := skeleton{schemaCheck: s, placed: map[string]elem{}, weighs: map[string]int{}, leads: map[string]string{}, ends: map[string]string{}}
	for at, sh := range s.shapes { // where an engine finds what is not written as its place
		if sh.ref != "" {
			s.edges[at] = append(s.edges[at], k.resolve(sh.ref))
		}
	}
	if !k.full() && s.cyclic() {
		return errCircle
	}
	roots := make([]int32, 0, len(s.roots))
	for _, place := range s.roots {
		roots = append(roots, k.at(place).rule)
	}
	for _, place := range s.roots {
		k.visits += k.weigh(place)
	}
	for i := 0; i < len(k.referred) && !k.full(); i++ { // weighing may find more
		k.visits += k.weigh(k.referred[i])
	}
	if k.full() {
		return errWork
	}
	if k.astray || k.lost && !s.Lenient {
		return errors.New("a $ref leads nowhere")
	}
	_, err := k.check(false, roots...)
	return err
}

// at returns the rule of the schema at a place.
func (k *skeleton) at(place string) elem {
	r, ok := k.placed[place]
	if !ok {
		r = k.rule()
		k.placed[place] = r
		sh := k.shapes[place]
		if sh == nil {
			sh = &shape{}
		}
		if k.spend(partWork, len(place)) {
			k.define(r, k.ways(place, sh)...)
		}
	}
	return r
}

// full reports whether the skeleton has reached its limits; the schema is then refused.
func (k *skeleton) full() bool {
	k.large = k.large || len(k.elems) > maxElems || k.work > maxWork || k.copied > maxCopied || k.passed > maxPassed || k.visits > maxVisits
	return k.large
}

// ways returns the alternatives of a schema.
func (k *skeleton) ways(place string, s *shape) (all [][]elem) {
	if s.ref != "" {
		return [][]elem{{k.at(k.resolve(s.ref))}}
	}
	for _, name := range [...]string{"/oneOf", "/anyOf"} {
		if n, ok := k.counts[place+name]; ok {
			var values []string // of alternatives that are no more than these
			for i := range n {
				if !k.spend(lookWork, len(place)) {
					break
				}
				one := place + name + "/" + strconv.Itoa(i)
				if s := k.shapes[one]; s != nil && s.ref == "" && k.counts[one+"/oneOf"]+k.counts[one+"/anyOf"] == 0 && len(s.values) > 0 {
					values = append(values, s.values...)
				} else {
					all = append(all, []elem{k.at(one)})
				}
			}
			return append(all, k.literals(values)...)
		}
	}
	if len(s.values) > 0 {
		return k.literals(s.values)
	}
	types := s.types
	if len(types) == 0 {
		types = []string{""}
	}
	for _, t := range types {
		if !k.spend(lookWork, len(place)) {
			break
		}
		all = append(all, k.typed(place, s, t)...)
	}
	return all
}

// typed returns the alternatives of a schema for one type, "" for none.
func (k *skeleton) typed(place string, s *shape, t string) [][]elem {
	fields, parts := k.names[place+"/properties"], k.counts[place+"/allOf"]
	if t == "object" || t == "" {
		if len(fields) > 0 || parts > 0 || s.more == jsonscan.Object || s.more == jsonscan.Bool && !s.open {
			return [][]elem{k.object(place, s)}
		}
	}
	if t == "array" || t == "" {
		for _, name := range [...]string{"/items", "/prefixItems"} {
			if n, ok := k.counts[place+name]; ok {
				list := []elem{k.sign('[')}
				for i := range n {
					if !k.spend(lookWork, len(place)) {
						break
					}
					if i > 0 {
						list = append(list, k.sign(','))
					}
					list = append(list, k.at(place+name+"/"+strconv.Itoa(i)))
				}
				return [][]elem{append(list, k.sign(']'))}
			}
		}
		if k.shapes[place+"/items"] != nil {
			return [][]elem{k.list('[', []elem{k.at(place + "/items")}, ']')}
		}
	}
	switch t {
	case "string":
		return [][]elem{{k.symbols("string", span{words, values - 1})}}
	case "number", "integer":
		return [][]elem{{k.symbols("number", span{figures, words - 1})}}
	case "boolean":
		return [][]elem{{k.symbols("boolean", span{aTrue, aFalse})}}
	case "null":
		return [][]elem{{k.sign(aNull)}}
	}
	return [][]elem{{k.value()}}
}

// object returns an object: what it requires, then the rest, any of which may
// be left out.
func (k *skeleton) object(place string, s *shape) []elem {
	all := []elem{k.sign('{')}
	var optional [][]elem
	named := []span{}
	for _, f := range k.fields(place, s) {
		if k.full() {
			break
		}
		pair := []elem{k.literal(`"` + f.name), k.at(f.place)}
		named = append(named, k.sets[pair[0].set][0])
		if !f.required {
			optional = append(optional, pair)
			continue
		}
		if len(all) > 1 {
			all = append(all, k.sign(','))
		}
		all = append(all, pair...)
	}
	var rest []elem
	if s.more == jsonscan.Object || s.open {
		value := k.value()
		if s.more == jsonscan.Object {
			value = k.at(place + "/additionalProperties")
		}
		pair := []elem{k.terminal("but "+place, func() []span { return without(named) }), value}
		rest = k.repeat(append([]elem{k.sign(',')}, pair...), 0, -1)
		optional = append(optional, pair)
	}
	var first [][]elem // what the optional members may begin with
	for i := len(optional) - 1; i >= 0; i-- {
		if i == len(optional)-1 && rest != nil {
			first = append(first, slices.Concat(optional[i], rest))
			continue
		}
		first = append(first, slices.Concat(optional[i], rest))
		rest = append(k.repeat(append([]elem{k.sign(',')}, optional[i]...), 0, 1), rest...)
		rest = []elem{k.group(rest)}
	}
	if len(first) > 0 {
		some := []elem{k.group(first...)}
		if len(all) > 1 {
			some = append([]elem{k.sign(',')}, some...)
		}
		all = append(all, k.group(some, nil))
	}
	return append(all, k.sign('}'))
}

const visiting = -1

// weigh returns how many schemas llama.cpp's converter visits for the one at a place: those of an allOf anew for each time that
// it is reached, those behind other references only once for each spelling, which is counted there. It is more than
// maxVisits where visits have no end.
func (k *skeleton) weigh(place string) int {
	if n, known := k.weighs[place]; known {
		if n == visiting {
			return maxVisits + 1
		}
		return n
	}
	sum := 1
	s := k.shapes[place]
	if s == nil || !k.spend(partWork, len(place)) {
		return sum
	}
	k.weighs[place] = visiting
	add := func(at string) { sum = clamp(sum + k.weigh(at)) }
	if s.ref != "" {
		k.resolve(s.ref)
	} else {
		for _, f := range k.fields(place, s) {
			add(f.place)
		}
		for _, name := range [...]string{"/oneOf", "/anyOf", "/items", "/prefixItems"} {
			for i := range k.counts[place+name] {
				add(place + name + "/" + strconv.Itoa(i))
			}
		}
		add(place + "/items")
		add(place + "/additionalProperties")
	}
	k.weighs[place] = sum
	return sum
}

// member is a property of an object.
type member struct {
	name, place string
	required    bool
}

// fields returns the properties of a schema, or those of the schemas of its allOf.
func (k *skeleton) fields(place string, s *shape) (list []member) {
	add := func(place string, required func(name string) bool) {
		for _, name := range k.names[place+"/properties"] {
			if !k.spend(partWork, len(place)+len(name)) {
				break
			}
			list = append(list, member{name, place + "/properties/" + name, required(name)})
		}
	}
	add(place, func(name string) bool { return s.required[name] })
	if len(list) > 0 {
		return list
	}
	for i := range k.counts[place+"/allOf"] {
		if !k.spend(lookWork, len(place)) {
			break
		}
		part := place + "/allOf/" + strconv.Itoa(i)
		if n, ok := k.counts[part+"/anyOf"]; ok {
			for j := range n {
				if !k.spend(lookWork, len(part)) {
					break
				}
				add(k.behind(part+"/anyOf/"+strconv.Itoa(j)), func(string) bool { return false })
			}
		} else {
			add(k.behind(part), func(string) bool { return true })
		}
	}
	return list
}

// value returns the rule of any JSON value.
func (k *skeleton) value() elem {
	if k.any == nil {
		r := k.rule()
		k.any = &r
		name := k.symbols("string", span{words, values - 1})
		k.define(r, k.list('{', []elem{name, r}, '}'), k.list('[', []elem{r}, ']'),
			[]elem{k.symbols("scalar", span{aTrue, aNull}, span{figures, values - 1})})
	}
	return *k.any
}

// list returns what repeats between two signs, separated by commas.
func (k *skeleton) list(open rune, item []elem, end rune) []elem {
	more := k.repeat(append([]elem{k.sign(',')}, item...), 0, -1)
	return []elem{k.sign(open), k.group(append(slices.Clone(item), more...), nil), k.sign(end)}
}

// literals returns values as alternatives: one terminal, but for objects and
// lists, which begin like others.
func (k *skeleton) literals(values []string) (all [][]elem) {
	var spans []span
	for _, v := range values {
		if v != "" && (v[0] == '{' || v[0] == '[') {
			all = append(all, []elem{k.sign(rune(v[0])), k.literal(v)})
		} else {
			spans = append(spans, k.sets[k.literal(v).set]...)
		}
	}
	if len(spans) > 0 {
		spans = tidy(spans, false)
		all = append(all, []elem{k.symbols("one of "+strings.Join(values, "\n"), spans...)})
	}
	return all
}

// literal returns the terminal of a value.
func (k *skeleton) literal(text string) elem {
	return k.terminal(text, func() []span {
		from := rune(figures)
		switch {
		case text == "true":
			return []span{{aTrue, aTrue}}
		case text == "false":
			return []span{{aFalse, aFalse}}
		case text == "null":
			return []span{{aNull, aNull}}
		case strings.HasPrefix(text, `"`):
			from = words
		case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
			from = values
		}
		c := from + 1 + rune(len(k.sets))
		return []span{{c, c}}
	})
}

// without returns the symbols of all strings but some.
func without(named []span) (spans []span) {
	from := rune(words)
	for _, s := range tidy(named, false) {
		spans = append(spans, span{from, s.low - 1})
		from = s.high + 1
	}
	return append(spans, span{from, values - 1})
}

func (k *skeleton) sign(c rune) elem {
	return k.terminal("sign "+strconv.Itoa(int(c)), func() []span { return []span{{c, c}} })
}

func (k *skeleton) symbols(text string, spans ...span) elem {
	return k.terminal("the "+text, func() []span { return spans })
}
