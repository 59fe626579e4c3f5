package recipe

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Layers are the sources of load options, highest priority first; the recipe's own defaults come below all of them.
// Each holds normalised options and may be nil.
type Layers struct {
	Request   Options // of this load; nil values skip the saved one
	Saved     Options // stored for the model
	Catalogue Options // models.yaml
	Runner    Options // flags and environment; options of other recipes are passed over
}

// Effective merges the layers by priority and returns every option that has a value. A nil in the request skips the
// saved value of that option, so that the catalogue's or a lower one counts. A layer with merge_args puts its own
// arguments behind those of the layers below it (later flags win in the engines that have an opinion).
func (r *Recipe) Effective(l Layers) Options {
	saved := l.Saved.Clone()
	for name, v := range l.Request {
		if v == nil {
			delete(saved, name)
		}
	}
	out := Options{}
	for name, spec := range r.Options {
		if spec.Default != nil {
			out[name] = spec.Default
		}
	}
	for _, layer := range []Options{l.Runner, l.Catalogue, saved, l.Request} {
		merge, _ := layer[MergeArgs].(bool)
		for name, v := range layer {
			spec, known := r.Options[name]
			if !known || v == nil {
				continue
			}
			if below, _ := out[name].(string); merge && spec.Kind == KindArgs && below != "" {
				text, _ := v.(string) // otherwise an unchecked layer
				v = strings.TrimSpace(below + " " + text)
			}
			out[name] = v
		}
	}
	return out
}

// OptionArgs turns effective options into arguments ({options}): those with a flag in the order of their names, then
// the split texts of kind args, so that they can override. Automatic values and false leave nothing.
func (r *Recipe) OptionArgs(opts Options) ([]string, error) {
	var flags, extra []string
	for _, name := range slices.Sorted(maps.Keys(opts)) {
		spec, v := r.Options[name], opts[name]
		if spec.Kind == KindArgs {
			text, _ := v.(string)
			args, err := SplitArgs(text)
			if err != nil {
				return nil, &OptionError{name, err.Error()}
			}
			extra = append(extra, args...)
			continue
		}
		if b, ok := v.(bool); ok && spec.Flag != "" {
			if b {
				flags = append(flags, spec.Flag)
			}
			continue
		}
		if text := spec.text(v); text != "" && spec.Flag != "" {
			flags = append(flags, spec.Flag, text)
		}
	}
	return append(flags, extra...), nil
}

// OptionValues returns the values of options for placeholders; automatic ones have none.
func (r *Recipe) OptionValues(opts Options) Values {
	out := make(Values, len(opts))
	for name, v := range opts {
		if text := r.Options[name].text(v); text != "" {
			out[name] = []string{text}
		}
	}
	return out
}

// text writes a value as an engine reads it, "" for an automatic one.
func (s OptionSpec) text(v any) string {
	switch v := v.(type) {
	case int64:
		if s.Auto != nil && float64(v) == *s.Auto {
			return ""
		}
		return strconv.FormatInt(v, 10)
	case float64:
		if s.Auto != nil && v == *s.Auto {
			return ""
		}
		return strconv.FormatFloat(v, 'f', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	case string:
		return v
	}
	return ""
}
