package api

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Patterns that reveal where an engine runs.
var (
	// stackLines are frames as C++, Go and JavaScript print them.
	stackLines = regexp.MustCompile(`(?m)^\s*(?:#\d+\s+0x[0-9a-f]+.*|\s+at \S+ ?\(.*|goroutine \d+ \[.*)\n?`)

	urls = regexp.MustCompile(`\b(?:https?|tcp|unix|wss?|redis|grpc)://[^\s"'<>)]+`)

	// addresses are IP addresses, bracketed IPv6 with a port, and names with a
	// port: dotted ones, localhost, and those with a hyphen or a digit in
	// front of the port, as hosts are called.
	addresses = regexp.MustCompile(`\b(?:\d{1,3}\.){3}\d{1,3}\b(?::\d{1,5})?|` +
		`\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\](?::\d{1,5})?|` +
		`\blocalhost\b(?::\d{1,5})?|` +
		`\b[A-Za-z0-9](?:[A-Za-z0-9-]*\.)+[A-Za-z]{2,}:\d{1,5}\b|` +
		`\b[A-Za-z0-9]+(?:-[A-Za-z0-9]+)+:\d{2,5}\b|\b[A-Za-z]+\d+:\d{4,5}\b`)

	// paths are absolute ones; the first group is the text before.
	paths = regexp.MustCompile(`(^|[\s"'` + "`" + `(\[=:,])((?:~?/[\w.@+%~-]+)+/?|[A-Za-z]:\\[^\s"']+)`)

	// sources are places in source files.
	sources = regexp.MustCompile(`\b[\w./-]+\.(?:cpp|cc|cu|c|h|hpp|py|go|rs|js):\d+(?::\d+)?`)
)

// maxMessage bounds an engine's message in bytes.
const maxMessage = 2000

// Redact removes from an engine's message what shows where the engine runs.
// hide are words to remove besides, the longest first; inside a longer word they stay, as a host may be called h.
func Redact(message string, hide ...string) string {
	if !utf8.ValidString(message) {
		message = strings.ToValidUTF8(message, "\uFFFD")
	}
	message = clip(message, 4*maxMessage) // bounds the work below
	if _, trace, ok := strings.Cut(message, "Traceback (most recent call last)"); ok {
		lines := strings.Split(strings.TrimSpace(trace), "\n")
		message = lines[len(lines)-1] // the exception itself
	}
	message = stackLines.ReplaceAllString(message, "")
	for _, word := range hide {
		message = hideWord(message, word)
	}
	message = urls.ReplaceAllString(message, "[address]")
	message = addresses.ReplaceAllString(message, "[address]")
	message = paths.ReplaceAllStringFunc(message, redactPath)
	message = sources.ReplaceAllString(message, "[file]")
	message = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7F {
			return ' '
		}
		return r
	}, message)
	return clip(strings.TrimSpace(message), maxMessage)
}

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
		if part(before) || part(after) {
			b.WriteString(word)
		} else {
			b.WriteString("[host]")
		}
		rest = rest[end:]
	}
	return message
}

// part reports whether r can continue a word.
func part(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

// redactPath replaces a match of paths unless it is a path of this API or one
// word behind a slash that no file is called like.
func redactPath(match string) string {
	at := strings.IndexAny(match, `/~\`)
	if match[at] == '\\' {
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
