package recipe

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// maxArgs bounds the text of an option of kind args, in bytes.
const maxArgs = 8192

// whiteSpace divides arguments.
const whiteSpace = " \t\r\n"

// SplitArgs splits a text into arguments like a POSIX shell, but supports only words, single quotes, double quotes and
// backslashes: no variables, globs, operators or comments. It refuses control characters other than white space.
func SplitArgs(s string) ([]string, error) {
	if len(s) > maxArgs {
		return nil, fmt.Errorf("longer than %d bytes", maxArgs)
	}
	var (
		out    []string
		word   strings.Builder
		inWord bool
		quote  rune // 0, ' or "
		escape bool
	)
	for _, r := range s {
		space := strings.ContainsRune(whiteSpace, r)
		if unicode.IsControl(r) && !space {
			return nil, fmt.Errorf("control character %U", r)
		}
		switch {
		case escape && r == '\n': // the line goes on
			escape = false
		case escape:
			// Inside double quotes a backslash escapes only a quote or a backslash.
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escape, inWord = false, true
		case quote == '\'' && r != '\'', quote == '"' && r != '"' && r != '\\':
			word.WriteRune(r)
		case quote != 0 && r == quote:
			quote = 0
		case r == '\\':
			escape = true
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case space:
			if inWord {
				out = append(out, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	switch {
	case quote != 0:
		return nil, errors.New("a quote is not closed")
	case escape:
		return nil, errors.New("ends with a backslash")
	case inWord:
		out = append(out, word.String())
	}
	return out, nil
}

// JoinArgs is the inverse of SplitArgs for arguments without control characters: it quotes those that need it.
func JoinArgs(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		if a == "" || strings.ContainsAny(a, whiteSpace+`'"\`) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		quoted[i] = a
	}
	return strings.Join(quoted, " ")
}

// reservedIn returns the first argument that is a reserved flag, or "" if there is none. It recognises the forms --flag
// and --flag=value, underscores for hyphens, and abbreviations if the engine completes them.
func (r *Recipe) reservedIn(args []string) string { return r.flagIn(args, r.ReservedArgs) }

// flagIn is reservedIn for other flags.
func (r *Recipe) flagIn(args, flags []string) string {
	for _, a := range args {
		flag, _, _ := strings.Cut(a, "=")
		if len(flag) < 2 || flag[0] != '-' {
			continue
		}
		norm, long := flag, strings.HasPrefix(flag, "--") && len(flag) > 2
		if long {
			norm = strings.ReplaceAll(flag, "_", "-")
		}
		if slices.ContainsFunc(flags, func(known string) bool {
			return norm == known || r.Abbreviations && long && strings.HasPrefix(known, norm)
		}) {
			return flag
		}
	}
	return ""
}

// refusedIn returns why arguments may not come from [Client], or "" if they may. Each must be a flag of AllowedArgs in
// one of its spellings. If the flag takes a value, an allowed one must follow, as the next argument or joined by "=".
func (r *Recipe) refusedIn(args []string) (reason string) {
	for i := 0; i < len(args); i++ {
		flag, value, joined := strings.Cut(args[i], "=")
		if !strings.HasPrefix(flag, "-") {
			return fmt.Sprintf("%.40q is not a flag", flag)
		}
		spec, ok := r.allowed(flag)
		switch {
		case !ok:
			return fmt.Sprintf("argument %.40q can only be set by the models file", flag)
		case spec.Kind == KindBool && joined:
			return fmt.Sprintf("argument %s takes no value", flag)
		case spec.Kind == KindBool:
			continue
		case !joined:
			if i++; i == len(args) {
				return fmt.Sprintf("argument %s has no value", flag)
			}
			value = args[i]
		}
		if reason := spec.refusedText(value); reason != "" {
			return fmt.Sprintf("argument %s: %s", flag, reason)
		}
	}
	return ""
}

// Tunes reports whether all arguments are among AllowedArgs.
func (r *Recipe) Tunes(args []string) bool { return r.refusedIn(args) == "" }

// allowed finds a flag among AllowedArgs. A long flag may be written with underscores for hyphens.
func (r *Recipe) allowed(flag string) (OptionSpec, bool) {
	if strings.HasPrefix(flag, "--") {
		flag = strings.ReplaceAll(flag, "_", "-")
	}
	for spellings, spec := range r.AllowedArgs {
		if slices.Contains(strings.Fields(spellings), flag) {
			return spec, true
		}
	}
	return OptionSpec{}, false
}

// Numbers that all engines read in the same way.
var (
	intRE      = regexp.MustCompile(`^-?[0-9]{1,15}$`)
	floatRE    = regexp.MustCompile(`^-?[0-9]{1,15}(\.[0-9]{1,15})?(e-?[0-9]{1,2})?$`)
	durationRE = regexp.MustCompile(`^[0-9]{1,9}(ns|us|ms|s|m|h)$`)
)

// refusedText returns why a text may not be the value of an allowed flag, or "" if it may.
func (s OptionSpec) refusedText(text string) string {
	switch s.Kind {
	case KindInt, KindFloat:
		re, want := intRE, "want a whole number"
		if s.Kind == KindFloat {
			re, want = floatRE, "want a number"
		}
		n, err := strconv.ParseFloat(text, 64)
		if !re.MatchString(text) || err != nil {
			return want
		}
		return s.checkRange(n)
	case KindDuration:
		if !durationRE.MatchString(text) {
			return "want a duration such as 300ms"
		}
		return ""
	}
	if !slices.Contains(s.Values, text) {
		return "want one of " + strings.Join(s.Values, ", ")
	}
	return ""
}

// CheckEffective checks effective options one last time, just before they become a command line, whoever merged them.
// owner holds the layers from the models file and the runner's flags, whose values are accepted as they stand.
// Everything else must be allowed from [Client]. Mistakes are reported as by [Recipe.ParseOptions].
func (r *Recipe) CheckEffective(opts Options, owner ...Options) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(opts)) {
		spec, known := r.Options[name]
		if !known || opts[name] == nil {
			continue
		}
		from := Client
		if spec.Kind == KindArgs || spec.Default != nil && opts[name] == spec.Default ||
			slices.ContainsFunc(owner, func(o Options) bool { return o[name] == opts[name] }) {
			from = Operator
		}
		_, reason := spec.normalise(opts[name], r, from)
		if text, ok := opts[name].(string); reason == "" && ok && spec.Kind == KindArgs {
			args, _ := SplitArgs(text) // cannot fail after normalise
			reason = r.refusedBeside(args, name, owner)
		}
		if reason != "" {
			errs = append(errs, &OptionError{name, reason})
		}
	}
	return errors.Join(errs...)
}

// refusedBeside is refusedIn for the arguments outside the owner's own sequences.
func (r *Recipe) refusedBeside(args []string, option string, owner []Options) string {
	for _, o := range owner {
		text, _ := o[option].(string)
		own, err := SplitArgs(text)
		if err != nil || len(own) == 0 {
			continue
		}
		for i := 0; i+len(own) <= len(args); i++ {
			if slices.Equal(args[i:i+len(own)], own) {
				if reason := r.refusedBeside(args[:i], option, owner); reason != "" {
					return reason
				}
				return r.refusedBeside(args[i+len(own):], option, owner)
			}
		}
	}
	return r.refusedIn(args)
}
