package recipe

import (
	"errors"
	"fmt"
	"slices"
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
