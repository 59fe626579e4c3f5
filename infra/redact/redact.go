// Package redact removes from engines' messages what shows where an engine runs, before clients see them.
package redact

import (
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"reveille/infra/term"
)

// pathChar is a character of a path's part.
const pathChar = `[\p{L}\p{M}\p{N}_.@+%~-]`

// codeLine is the end of a source file's name with a line's number.
const codeLine = `\.(?:cpp|cc|cu|c|h|hpp|py|go|rs|js):\d+`

// Patterns that reveal where an engine runs.
var (
	// stackLines are frames as C++, Go and JavaScript print them.
	stackLines = regexp.MustCompile(`(?m)^\s*(?:#\d+\s+0x[0-9a-f]+.*|\s+at \S+ ?\(.*|goroutine \d+ \[.*)\n?`)

	// addresses are IP addresses, bracketed IPv6 with a port, bare IPv6 of the ranges that hosts have, and names with a
	// port: dotted ones, localhost, and those with a hyphen or a digit in
	// front of the port, as hosts are called.
	addresses = regexp.MustCompile(`\b(?:\d{1,3}\.){3}\d{1,3}\b(?::\d{1,5})?|` +
		`\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%[\w.-]+)?\](?::\d{1,5})?|` +
		`\b(?:[23][0-9a-fA-F]{3}|[fF][c-fC-F][0-9a-fA-F]{2})(?:(?::[0-9a-fA-F]{1,4})*::[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,5})*|(?::[0-9a-fA-F]{1,4}){5,}(?::\d{1,5})?)\b(?:%[\w.-]+)?|` +
		`\blocalhost\b(?::\d{1,5})?|` +
		`\b[A-Za-z0-9](?:[A-Za-z0-9-]*\.)+[A-Za-z]{2,}:\d{1,5}\b|` +
		`\b[A-Za-z0-9]+(?:-[A-Za-z0-9]+)+:\d{2,5}\b|\b[A-Za-z]+\d+:\d{4,5}\b`)

	// peers are other names with a port, which words such as tokens:8192 look like, where a connection is spoken of.
	peers = regexp.MustCompile(`(?i)(\b(?:connect|connect(?:ing|ed|ion) (?:to|with)|connect to|dial|tcp|udp|host|resolve|lookup|reach) ["']?)[a-z][a-z0-9_]*:\d{2,5}\b`)

	// paths are absolute ones, of UNC too; the first group is the text before. One word with a space goes on if a
	// file's name ends it.
	paths = regexp.MustCompile(`(^|[^\p{L}\p{N}_.#)\]}$%@+~*/\\-])` +
		`((?:~?/` + pathChar + `+)+(?: ` + pathChar + `+(?:/` + pathChar + `+)*/` + pathChar + `*\.[A-Za-z0-9]+)?/?|(?:[A-Za-z]:\\|\\\\[\p{L}\p{N}])[^\s"']+)`)

	// sources are places in source files.
	sources = regexp.MustCompile(`\b[\w./-]+` + codeLine + `(?::\d+)?`)

	// sourceName matches addresses that are such places without a folder.
	sourceName = regexp.MustCompile(`^[\w-]+` + codeLine + `$`)
)

// Bounds of messages in bytes, without the ellipsis of those that are cut.
const (
	maxResponse = 2000
	maxFailure  = 300
)

// Response redacts an engine's response to a request. Words with a slash that are not paths stay, as they may be the
// client's own. hide are words to remove besides, the longest first; inside a longer word they stay, as a host can be
// called h.
func Response(message string, hide ...string) string {
	message = toValidUTF8(message)
	message = term.Clip(message, 4*maxResponse) // bounds the work below
	if _, trace, ok := strings.Cut(message, "Traceback (most recent call last)"); ok {
		lines := strings.Split(strings.TrimSpace(trace), "\n")
		message = lines[len(lines)-1] // the exception itself
	}
	message = stackLines.ReplaceAllString(message, "")
	for _, word := range hide {
		message = hideWord(message, word)
	}
	if strings.Contains(message, "://") {
		message = anyURL.ReplaceAllString(message, "[address]")
	}
	message = hideAddresses(message)
	message = peers.ReplaceAllString(message, "$1[address]")
	message = paths.ReplaceAllStringFunc(message, redactPath)
	message = sources.ReplaceAllString(message, "[file]")
	message = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7F {
			return ' '
		}
		return r
	}, message)
	return term.Clip(strings.TrimSpace(message), maxResponse)
}

// anyPath matches whatever may be a path, relative ones too.
var anyPath = regexp.MustCompile(`(?:[A-Za-z]:)?[\p{L}\p{N}_.~@+%-]*(?:[/\\]+[\p{L}\p{N}_.~@+%-]+)+[/\\]*`)

// anyURL matches URLs of every scheme.
var anyURL = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>)]+`)

// Failure redacts why a load failed, as one line. Of a path, the last part stays: it shows which file was wrong.
func Failure(message string) string {
	message = anyURL.ReplaceAllString(toValidUTF8(message), "[address]")
	message = anyPath.ReplaceAllStringFunc(message, func(s string) string { return path.Base(strings.ReplaceAll(s, `\`, "/")) })
	message = hideAddresses(message)
	message = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, message)
	return term.Clip(strings.TrimSpace(message), maxFailure)
}

// hideAddresses hides addresses. A source file with a line, such as main.cpp:92, is not a host with a port.
func hideAddresses(message string) string {
	return addresses.ReplaceAllStringFunc(message, func(match string) string {
		if sourceName.MatchString(match) {
			return match
		}
		return "[address]"
	})
}

func toValidUTF8(message string) string { return strings.ToValidUTF8(message, "\uFFFD") }

// hideWord replaces word where it is a whole word.
func hideWord(message, word string) string {
	var b strings.Builder
	for rest := message; word != ""; {
		at := strings.Index(rest, word)
		if at < 0 {
			if b.Len() == 0 {
				return message
			}
			return b.String() + rest
		}
		end := at + len(word)
		from := len(message) - len(rest)
		before, _ := utf8.DecodeLastRuneInString(message[:from+at])
		after, _ := utf8.DecodeRuneInString(rest[end:])
		b.WriteString(rest[:at])
		if isWordRune(before) || isWordRune(after) {
			b.WriteString(word)
		} else {
			b.WriteString("[host]")
		}
		rest = rest[end:]
	}
	return message
}

// isWordRune reports whether r can continue a word.
func isWordRune(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

// redactPath replaces a match of paths unless it is a path of this API or one
// word behind a slash that no file is called like.
func redactPath(match string) string {
	at := strings.IndexAny(match, `/~\`)
	if at >= 2 && match[at] == '\\' && match[at-1] == ':' {
		at -= 2 // the drive
	}
	path := match[at:]
	inner := strings.TrimSuffix(path, "/")
	single := strings.LastIndexByte(inner, '/') == 0 && !strings.Contains(inner, ".")
	if single || strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/api/") {
		return match
	}
	return match[:at] + "[path]"
}
