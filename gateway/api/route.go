package api

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"reveille/infra/jsonscan"
	"reveille/infra/policy"
)

// Scope is the scope that a key must have to use a route.
type Scope uint8

// The scopes, from open to closed.
const (
	ScopeFree   Scope = iota // no key
	ScopeAnyKey              // a key, whatever its scope
	ScopeInfer               // a key with infer
	ScopeManage              // a key with manage
	ScopeAdmin               // a key with manage; without configured keys the local admin key, since the route could run programs or read files on a host
)

// BodyKind is how a route treats a request body.
type BodyKind uint8

// The kinds of body.
const (
	BodyNone     BodyKind = iota // ignored
	BodyJSON                     // one JSON object
	BodyOptional                 // one JSON object, or nothing
	BodyForm                     // multipart/form-data
	BodyRaw                      // passed on as it is
	BodyFile                     // multipart/form-data with a file, which the handler reads as it comes
)

// Mount says under which paths a route is reachable.
type Mount uint8

// The mounts; a route may have both.
const (
	Prefixed Mount = 1 << iota // under /v1, /v0, /api/v1 and /api/v0
	Bare                       // at its own path
)

// JSONTypes is a set of JSON types.
type JSONTypes uint8

// TypesOf returns the set of the given types.
func TypesOf(kinds ...jsonscan.Kind) (set JSONTypes) {
	for _, k := range kinds {
		set |= 1 << k
	}
	return set
}

// Has reports whether k is in the set.
func (s JSONTypes) Has(k jsonscan.Kind) bool { return s>>k&1 != 0 }

// Field is a request field the gateway looks at before anything is loaded. A
// null counts as absent.
type Field struct {
	Name        string
	Alt         string    // another name for the same field, "" when there is none
	Types       JSONTypes // accepted types
	Required    bool      // must be there and not empty
	Max         int       // most items of an array, 0 for no limit; an array of numbers is one item (tokens)
	AtLeastOne  bool      // a number must be at least 1
	Unsupported bool      // must not be there: the route cannot do what it asks for
}

// Route is what clients and the checks before a handler need to know of a route. Routes are shared: do not change one.
type Route struct {
	Name      string // short and stable, for logs and metrics
	Pattern   string // "POST /load": GET serves HEAD too, ANY takes every method; {id} is any number of path segments
	Mount     Mount  // default Prefixed
	Dialect   Dialect
	Type      policy.Type // type of model the route needs, "" when any or none
	Scope     Scope
	PerModel  bool // it concerns only models that the key may use; others refuse keys that are limited to some models
	Body      BodyKind
	Inference bool    // runs a model, so it waits, counts and is relayed
	Large     bool    // its body may be as large as that of inference; it is never decoded whole
	CanStream bool    // the response may be a stream of events or lines, which can be held open before it starts
	Streams   bool    // an absent stream field means true
	InQuery   bool    // the query may name the model where the body does not, as ?model=ID
	Model     Field   // where the model's name is; its Name is "" when it is not in the body
	Fields    []Field // the others that are checked

	// Set by NewRouter.
	Index        int // in the router's table
	Method, Path string
	keys         []string
}

// anyMethod is the method of a route that takes every method.
const anyMethod = "ANY"

// Limits of lists in a request.
const (
	MaxMessages  = 1024 // of a dialogue
	MaxItems     = 4096 // of the input of a response; several can make one message
	MaxInputs    = 2048 // of an embedding request
	MaxDocuments = 2048 // of a rerank request
)

// MaxKeys bounds the length of every route's [Route.Keys], so that a caller
// can keep the values on its stack.
const MaxKeys = 8

// Where every route's keys, and so the values or parts found for them, hold
// the model's name and the stream flag.
const (
	KeyModel  = 0
	KeyStream = 1
)

// compile fills in what follows from the rest.
func (r *Route) compile(index int) {
	r.Index, r.Mount = index, cmp.Or(r.Mount, Prefixed)
	r.Method, r.Path, _ = strings.Cut(r.Pattern, " ")
	r.keys = []string{r.Model.Name, "stream"}
	add := func(name string) {
		if name != "" {
			r.keys = append(r.keys, name)
		}
	}
	add(r.Model.Alt)
	for _, f := range r.Fields {
		add(f.Name)
		add(f.Alt)
	}
}

// Keys returns the names to look for in a request body, with [jsonscan.Scan] or
// [jsonscan.Multipart]; the results go to the methods below. It is not to be
// changed.
func (r *Route) Keys() []string { return r.keys }

// ModelName returns the value of the field that names the model, the first of
// its names that is not empty; it may be absent, null or empty. A route without a model in its body always has the zero
// Value.
func (r *Route) ModelName(values []jsonscan.Value) jsonscan.Value {
	if r.Model.Name == "" {
		return jsonscan.Value{} // the key "" is a mere place holder
	}
	v := values[KeyModel]
	if r.Model.Alt == "" || v.Set() && !v.Empty() {
		return v
	}
	if alt := values[KeyStream+1]; alt.Set() || !v.Set() {
		return alt
	}
	return v // empty, which is not the same as absent
}

// Stream reports whether the client wants a stream.
func (r *Route) Stream(values []jsonscan.Value) bool {
	v := values[KeyStream]
	return v.Bool() || r.Streams && !v.Set()
}

// Check applies the route's rules to the values of its keys. That a model is
// named at all is not checked here, for a default can be configured.
func (r *Route) Check(values []jsonscan.Value) *Error {
	if v := r.ModelName(values); v.Set() && v.Kind != jsonscan.String {
		return Field{Name: r.Model.Name, Types: TypesOf(jsonscan.String)}.wrongType(v.Kind)
	}
	if v := values[KeyStream]; v.Set() && v.Kind != jsonscan.Bool {
		return Field{Name: "stream", Types: TypesOf(jsonscan.Bool)}.wrongType(v.Kind)
	}
	i := r.firstField()
	for _, f := range r.Fields {
		v := values[i]
		i++
		if f.Alt != "" {
			if alt := values[i]; !v.Set() && alt.Set() {
				v, f.Name = alt, f.Alt
			}
			i++
		}
		if e := f.check(v); e != nil {
			return e
		}
	}
	return nil
}

// CheckForm is [Route.Check] for a form: a needed field must be a part with
// content.
func (r *Route) CheckForm(parts []jsonscan.Part) *Error {
	i := r.firstField()
	for _, f := range r.Fields {
		p := parts[i]
		i++
		if f.Alt != "" {
			if !p.Present {
				p = parts[i]
			}
			i++
		}
		if f.Required && p.Empty() {
			return f.missing(p.Present)
		}
	}
	return nil
}

func (r *Route) firstField() int {
	if r.Model.Alt != "" {
		return KeyStream + 2
	}
	return KeyStream + 1
}

func (f Field) check(v jsonscan.Value) *Error {
	switch {
	case !v.Set():
		if f.Required {
			return f.missing(false)
		}
		return nil
	case f.Unsupported:
		return Newf(UnsupportedParameter, "'%s' is not supported here.", f.Name).WithParam(f.Name)
	case !f.Types.Has(v.Kind):
		return f.wrongType(v.Kind)
	case f.Required && v.Empty():
		return f.missing(true)
	case f.Max > 0 && v.Kind == jsonscan.Array && v.Len() > f.Max && v.First() != jsonscan.Number:
		return Newf(InvalidType, "'%s' has %d items; at most %d are accepted.", f.Name, v.Len(), f.Max).WithParam(f.Name)
	case f.AtLeastOne && v.Kind == jsonscan.Number && !atLeastOne(v.Raw):
		return Newf(InvalidType, "'%s' must be at least 1.", f.Name).WithParam(f.Name)
	}
	return nil
}

func (f Field) missing(present bool) *Error {
	text := f.expected() + "."
	if present {
		text = fmt.Sprintf("'%s' must not be empty.", f.Name)
	}
	return New(MissingRequiredParameter, text).WithParam(f.Name)
}

func (f Field) wrongType(got jsonscan.Kind) *Error {
	return Newf(InvalidType, "%s, not %s.", f.expected(), got).WithParam(f.Name)
}

// expected says what a field must be. Of a needed one it is Lemonade's sentence, which its clients look for.
func (f Field) expected() string {
	types := ""
	for k := jsonscan.Null; k <= jsonscan.Object; k++ {
		if f.Types.Has(k) {
			types += " or " + k.String()
		}
	}
	types = strings.TrimPrefix(types, " or ")
	switch {
	case !f.Required:
		return fmt.Sprintf("'%s' must be a JSON %s", f.Name, types)
	case types == "":
		return fmt.Sprintf("Parameter '%s' is required", f.Name)
	}
	return fmt.Sprintf("Parameter '%s' is required and must be a %s", f.Name, types)
}

// atLeastOne reports whether a JSON number is 1 or more.
func atLeastOne(raw []byte) bool {
	f, err := strconv.ParseFloat(string(raw), 64)
	return f >= 1 || err != nil && raw[0] != '-' // too large to parse is large
}
