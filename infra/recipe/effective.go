package recipe

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Layers are the sources of load options, highest priority first. The recipe's own defaults rank below all of them.
// Each layer holds normalized options and may be nil.
type Layers struct {
	Request Options // for this load; a nil value skips the saved one
	Saved   Options // stored for the model
	Catalog Options // models.yaml
	Runner  Options // run-time settings over flags and environment; options of other recipes are ignored
}

// Effective merges the layers by priority and returns every option that has a value. A nil in the request skips the
// saved value of that option, so that the catalog or a lower layer decides. Requests and saved options cannot set what
// only the operator may. A layer with merge_args appends its arguments to those of the layers below it; in engines that
// accept a flag twice, the later one wins.
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
	for i, layer := range []Options{l.Runner, l.Catalog, saved, l.Request} {
		operator := i < 2
		merge, _ := layer[MergeArgs].(bool)
		for name, v := range layer {
			spec, known := r.Options[name]
			if !known || v == nil || !operator && spec.operatorOnly() {
				continue
			}
			if below, _ := out[name].(string); merge && spec.Kind == KindArgs && below != "" {
				text, _ := v.(string) // always text, unless a layer was not checked
				v = strings.TrimSpace(below + " " + text)
			}
			out[name] = v
		}
	}
	return out
}

// OptionArgs turns effective options into arguments ({options}). Options with a flag come first, in the order of their
// names; the split texts of kind args follow, so that they can override. Automatic values and false add nothing.
func (r *Recipe) OptionArgs(opts Options) ([]string, error) {
	extra, err := r.ExtraArgs(opts)
	if err != nil {
		return nil, err
	}
	var flags []string
	for _, name := range slices.Sorted(maps.Keys(opts)) {
		spec, v := r.Options[name], opts[name]
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

// ExtraArgs returns the arguments in options of kind args, in the order of the options' names. An error is an
// [*OptionError].
func (r *Recipe) ExtraArgs(opts Options) (extra []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(opts)) {
		if r.Options[name].Kind != KindArgs {
			continue
		}
		text, _ := opts[name].(string)
		args, err := SplitArgs(text)
		if err != nil {
			return nil, &OptionError{name, err.Error()}
		}
		extra = append(extra, args...)
	}
	return extra, nil
}

// OptionValues returns the values of options for placeholders. Automatic options have none.
func (r *Recipe) OptionValues(opts Options) Values {
	out := make(Values, len(opts))
	for name, v := range opts {
		if text := r.Options[name].text(v); text != "" {
			out[name] = []string{text}
		}
	}
	return out
}

// text formats a value for an engine, or returns "" for an automatic one.
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
