package recipe

import (
	"fmt"
	"regexp"
	"strings"
)

// Values maps placeholders to their values. A placeholder without values, or with a single empty one, has no value.
type Values map[string][]string

func (v Values) lookup(name string) []string {
	vals := v[name]
	if len(vals) == 1 && vals[0] == "" {
		return nil
	}
	return vals
}

var placeholderRE = regexp.MustCompile(`\{([a-z][a-z0-9_-]*)\}`)

// placeholders lists the names of the placeholders in s, in order.
func placeholders(s string) []string {
	var out []string
	for _, m := range placeholderRE.FindAllStringSubmatch(s, -1) {
		out = append(out, m[1])
	}
	return out
}

// Expand turns argument groups into an argument vector. It leaves out groups with a placeholder that has no value. It
// never expands braces inside a value. A placeholder with several values must be a separate argument; anything else is
// an error.
func Expand(groups []Group, v Values) ([]string, error) {
	var out []string
	for _, g := range groups {
		args, ok, err := expandGroup(g, v)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, args...)
		}
	}
	return out, nil
}

func expandGroup(g Group, v Values) (args []string, ok bool, err error) {
	for _, arg := range g {
		if names := placeholders(arg); len(names) == 1 && arg == "{"+names[0]+"}" {
			vals := v.lookup(names[0])
			if len(vals) == 0 {
				return nil, false, nil
			}
			args = append(args, vals...)
			continue
		}
		s, ok, err := ExpandString(arg, v)
		if err != nil || !ok {
			return nil, false, err
		}
		args = append(args, s)
	}
	return args, true, nil
}

// ExpandString replaces the placeholders in a text, each of which must have at most one value. ok is false if one has
// no value.
func ExpandString(s string, v Values) (out string, ok bool, err error) {
	var b strings.Builder
	last := 0
	for _, m := range placeholderRE.FindAllStringSubmatchIndex(s, -1) {
		name := s[m[2]:m[3]]
		vals := v.lookup(name)
		switch len(vals) {
		case 0:
			return "", false, nil
		case 1:
		default:
			return "", false, fmt.Errorf("placeholder {%s} has %d values and must be a separate argument", name, len(vals))
		}
		b.WriteString(s[last:m[0]])
		b.WriteString(vals[0])
		last = m[1]
	}
	b.WriteString(s[last:])
	return b.String(), true, nil
}
