package host

import (
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMessage bounds a message for clients, in bytes.
const maxMessage = 300

// addressOrPath matches words that reveal a location: URLs, Unix and Windows paths, and addresses with or without port.
var addressOrPath = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>()]+` +
	`|(?:[A-Za-z]:)?[\p{L}\p{N}_.~@+%-]*(?:[/\\]+[\p{L}\p{N}_.~@+%-]+)+[/\\]*` +
	`|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?\b|\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\](?::\d{1,5})?|\blocalhost\b(?::\d{1,5})?`)

// redact makes an engine's message fit for clients: it keeps only the last part of a path, removes addresses and URLs, and
// returns one short line.
func redact(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = addressOrPath.ReplaceAllStringFunc(text, func(s string) string {
		if strings.Contains(s, "://") || !strings.ContainsAny(s, `/\`) {
			return "[address]"
		}
		return path.Base(strings.ReplaceAll(s, `\`, "/"))
	})
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text))
	if len(text) <= maxMessage {
		return text
	}
	cut := maxMessage
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + " …"
}
