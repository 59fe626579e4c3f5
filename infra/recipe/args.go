package recipe

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// MaxArgs is the longest text of an option of kind args, in bytes.
const MaxArgs = 8192

// SplitArgs cuts a text into arguments as a POSIX shell would do with words, single quotes, double quotes and
// backslashes, and with nothing else: no variables, globs, operators or comments. Control characters other than spaces
// and tabs between words are refused.
func SplitArgs(s string) ([]string, error) {
	if len(s) > MaxArgs {
		return nil, fmt.Errorf("longer than %d bytes", MaxArgs)
	}
	var (
		out    []string
		word   strings.Builder
		inWord bool
		quote  rune // 0, ' or "
		escape bool
	)
	for _, r := range s {
		if unicode.IsControl(r) && r != '\t' {
			return nil, fmt.Errorf("control character %U", r)
		}
		switch {
		case escape:
			// Inside double quotes a backslash only protects a quote or a backslash.
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escape = false
		case quote == '\'' && r != '\'', quote == '"' && r != '"' && r != '\\':
			word.WriteRune(r)
		case quote != 0 && r == quote:
			quote = 0
		case r == '\\':
			escape, inWord = true, true
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t':
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

// reservedIn returns the first argument that is a reserved flag, in the forms --flag and --flag=value, with underscores
// for hyphens, or abbreviated where the engine would complete it; "" when there is none.
func (r *Recipe) reservedIn(args []string) string {
	for _, a := range args {
		flag, _, _ := strings.Cut(a, "=")
		if len(flag) < 2 || flag[0] != '-' {
			continue
		}
		norm, long := flag, strings.HasPrefix(flag, "--") && len(flag) > 2
		if long {
			norm = strings.ReplaceAll(flag, "_", "-")
		}
		if slices.ContainsFunc(r.ReservedArgs, func(reserved string) bool {
			return norm == reserved || r.Abbreviations && long && strings.HasPrefix(reserved, norm)
		}) {
			return flag
		}
	}
	return ""
}
