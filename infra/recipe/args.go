package recipe

import (
	"errors"
	"fmt"
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
