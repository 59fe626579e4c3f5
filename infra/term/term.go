// Package term bounds and cleans texts from elsewhere, and keeps a terminal from obeying them.
package term

import (
	"bytes"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// Writer returns a writer that passes text on to w with spaces in place of control characters, other than line breaks,
// and of characters that change the direction of writing. Names and states of a pool come from hosts and from Redis,
// whose writers are not trusted. A character must not be split between two writes.
func Writer(w io.Writer) io.Writer { return writer{w} }

// Table returns a writer of a table, columns divided by tabs, that prints as [Writer] does. Flush ends the table.
func Table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(Writer(w), 0, 0, 2, ' ', 0) }

type writer struct{ w io.Writer }

func (w writer) Write(p []byte) (int, error) {
	if _, err := w.w.Write(bytes.Map(plain, p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func plain(r rune) rune {
	if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
		return ' '
	}
	return r
}

// Clip returns text, or of longer text at most limit bytes, of whole characters, with an ellipsis.
func Clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit] + "…"
}

// Line returns the start of text, at most limit bytes, on one line: with spaces in place of what [Writer] replaces and
// of line breaks, and without bytes that are not UTF-8.
func Line(text string, limit int) string {
	text = strings.Map(plain, strings.ToValidUTF8(text[:min(len(text), limit)], ""))
	return strings.TrimSpace(strings.ReplaceAll(text, "\n", " "))
}
