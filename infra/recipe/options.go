package recipe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"reveille/infra/jsonscan"
)

// Kinds of option.
const (
	KindInt    = "int"    // int64
	KindFloat  = "float"  // float64
	KindString = "string" // string
	KindBool   = "bool"   // bool
	KindArgs   = "args"   // string of extra arguments, see [SplitArgs]
)

// Origin says where options come from.
type Origin bool

// Origins.
const (
	// Operator wrote the models file, and the runner's flags and environment.
	Operator Origin = true
	// Client wrote everything else: requests, registered models, saved options and run-time settings. It may set
	// numbers, switches and words from fixed lists.
	Client Origin = false
)

// MergeArgs is an option of every recipe that has an option of kind args. A models file that sets it to true appends
// its arguments to those of the runner's flags instead of replacing them. It is never part of effective options.
const MergeArgs = "merge_args"

// An OptionSpec describes one load option of a recipe.
type OptionSpec struct {
	Kind    string   `json:"kind"`
	Default any      `json:"default,omitempty"`
	Min     *float64 `json:"min,omitempty"` // least number allowed; nil means no bound
	Max     *float64 `json:"max,omitempty"`
	// Auto is a value, allowed in addition to the range, that leaves the choice to the runner or the engine: the flag
	// is then omitted.
	Auto *float64 `json:"auto,omitempty"`
	// Values lists the texts allowed for a string; empty allows any.
	Values []string `json:"values,omitempty"`
	// Flag precedes the value in {options}; for a bool it is given alone if the value is true. Without a flag the value
	// is only available to placeholders and the runner. Options of kind args have no flag.
	Flag string `json:"flag,omitempty"`
}

// Options are load options by name. Normalized options, as made by [Recipe.ParseOptions] and [Options.UnmarshalJSON],
// hold int64, float64, string, bool, or nil for "ignore the saved value".
type Options map[string]any

// Canonical returns the canonical JSON of o: sorted keys, no spaces, no HTML escapes. Options with the same meaning
// have the same text.
func (o Options) Canonical() string {
	if o == nil {
		o = Options{}
	}
	text, err := jsonscan.Marshal(map[string]any(o))
	if err != nil {
		panic("recipe: options that are not normalized: " + err.Error())
	}
	return string(text)
}

// Equal reports whether two normalized sets of options are the same.
func (o Options) Equal(p Options) bool { return o.Canonical() == p.Canonical() }

// Clone returns an independent copy of o.
func (o Options) Clone() Options { return maps.Clone(o) }

// UnmarshalJSON reads an object of scalars. Whole numbers become int64, other numbers float64.
func (o *Options) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var raw map[string]any
	if err := dec.Decode(&raw); err != nil {
		return err
	}
	out := make(Options, len(raw))
	for k, v := range raw {
		switch v := v.(type) {
		case nil, string, bool:
			out[k] = v
		case json.Number:
			if i, err := v.Int64(); err == nil {
				out[k] = i
			} else if f, err := v.Float64(); err == nil {
				out[k] = f
			} else {
				return fmt.Errorf("option %q: number out of range", k)
			}
		default:
			return fmt.Errorf("option %q: want a number, text, true, false or null", k)
		}
	}
	*o = out
	return nil
}

// An OptionError says which option was refused and why. Reason never repeats the complete value.
type OptionError struct {
	Name, Reason string
}

func (e *OptionError) Error() string { return "option " + e.Name + ": " + e.Reason }

// OptionErrors lists the mistakes in an error of [Recipe.ParseOptions].
func OptionErrors(err error) (out []*OptionError) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if oe, ok := errors.AsType[*OptionError](e); ok {
				out = append(out, oe)
			}
		}
	}
	return out
}

// ParseOptions checks options against the recipe and their origin, and returns them normalized. It reports all mistakes
// at once, in the order of the names, each as an [*OptionError]. It keeps a nil value.
//
// From [Client], options of kind args must be empty, and options of kind string hold one of their listed values.
func (r *Recipe) ParseOptions(in map[string]any, from Origin) (Options, error) {
	out := make(Options, len(in))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(in)) {
		spec, ok := r.Options[name]
		if name == MergeArgs && r.takesArgs() {
			spec, ok = OptionSpec{Kind: KindBool}, true
		}
		if !ok {
			errs = append(errs, &OptionError{name, fmt.Sprintf("recipe %s has no such option", r.Name)})
			continue
		}
		if in[name] == nil {
			out[name] = nil
			continue
		}
		v, reason := spec.normalize(in[name], from)
		if reason != "" {
			errs = append(errs, &OptionError{name, reason})
			continue
		}
		out[name] = v
	}
	return out, errors.Join(errs...)
}

func (r *Recipe) takesArgs() bool {
	for _, s := range r.Options {
		if s.Kind == KindArgs {
			return true
		}
	}
	return false
}

// normalize checks one value. reason is empty if the value is valid.
func (s OptionSpec) normalize(v any, from Origin) (out any, reason string) {
	if from == Client && s.operatorOnly() && v != "" {
		return nil, "can only be set in the models file or by the runner's flags"
	}
	switch s.Kind {
	case KindInt:
		n, ok := asInt(v)
		if !ok {
			return nil, "want a whole number"
		}
		return n, s.checkRange(float64(n))
	case KindFloat:
		f, ok := asFloat(v)
		if !ok {
			return nil, "want a number"
		}
		return f, s.checkRange(f)
	case KindBool:
		b, ok := v.(bool)
		if !ok {
			return nil, "want true or false"
		}
		return b, ""
	case KindString:
		t, ok := v.(string)
		switch {
		case !ok:
			return nil, "want a text"
		case len(s.Values) > 0 && !slices.Contains(s.Values, t):
			return nil, "want one of " + strings.Join(s.Values, ", ")
		case strings.HasPrefix(t, "-"):
			return nil, "starts with a hyphen"
		case strings.ContainsFunc(t, unicode.IsControl):
			return nil, "holds a control character"
		}
		return t, ""
	case KindArgs:
		t, ok := v.(string)
		if !ok {
			return nil, "want a text"
		}
		if _, err := SplitArgs(t); err != nil {
			return nil, err.Error()
		}
		return t, ""
	}
	return nil, "has an unknown kind"
}

// operatorOnly reports whether an option takes any text, which could be a path, an address or a flag.
func (s OptionSpec) operatorOnly() bool {
	return s.Kind == KindArgs || s.Kind == KindString && len(s.Values) == 0
}

func (s OptionSpec) checkRange(f float64) string {
	if s.Auto != nil && f == *s.Auto {
		return ""
	}
	if s.Min != nil && f < *s.Min || s.Max != nil && f > *s.Max {
		want := "want "
		switch {
		case s.Min != nil && s.Max != nil:
			want += fmt.Sprintf("%s to %s", number(*s.Min), number(*s.Max))
		case s.Min != nil:
			want += fmt.Sprintf("at least %v", *s.Min)
		default:
			want += fmt.Sprintf("at most %v", *s.Max)
		}
		if s.Auto != nil {
			want += fmt.Sprintf(", or %v for automatic", *s.Auto)
		}
		return want
	}
	return ""
}

// asFloat accepts every number of JSON and YAML decoders, in quotes, too: some clients quote them.
func asFloat(v any) (float64, bool) {
	switch v.(type) {
	case int, int64, uint64, float64, json.Number, string:
		f, err := strconv.ParseFloat(fmt.Sprint(v), 64)
		return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
	}
	return 0, false
}

// asInt accepts those numbers that are whole and exact.
func asInt(v any) (int64, bool) {
	const exact = 1 << 53 // what a float64 holds
	f, ok := asFloat(v)
	if n, err := strconv.ParseInt(fmt.Sprint(v), 10, 64); ok && err == nil {
		return n, true
	}
	return int64(f), ok && f == math.Trunc(f) && math.Abs(f) <= exact
}

// number formats a bound without an exponent.
func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
