package jsonscan

import (
	"bytes"
	"mime"
	"strings"
)

// Limits of a form. They are far above what a client of the served routes
// sends and keep a hostile body from costing more than its own length.
const (
	maxParts      = 256
	maxPartHeader = 8 << 10
)

// Part is one field of a form. The zero Part is a field the form does not have.
type Part struct {
	Present bool
	Value   []byte // the content inside the body; not a copy

	from, to int // from the delimiter before it to the one behind it, without their line breaks
}

// Empty reports whether the field is missing or has no content.
func (p Part) Empty() bool { return len(p.Value) == 0 }

// String returns the content as a copy.
func (p Part) String() string { return string(p.Value) }

// Boundary returns the boundary of a multipart/form-data media type. ok is
// false for any other media type and for a missing or overlong boundary.
func Boundary(contentType string) (boundary string, ok bool) {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil || media != "multipart/form-data" {
		return "", false
	}
	boundary = params["boundary"]
	return boundary, boundary != "" && len(boundary) <= 70
}

// Multipart walks a multipart/form-data body and stores in out[i] the field
// names[i]; the last of several wins. out must be at least as long as names.
// Contents are not copied. The error is a [*SyntaxError]; the closing
// delimiter must be there, so a body cut short is never taken for a whole one.
func Multipart(body []byte, boundary string, names []string, out []Part) error {
	out = out[:len(names)]
	clear(out)
	return EachPart(body, boundary, func(name string, p Part) {
		for i := range names {
			if name != "" && names[i] == name {
				out[i] = p
				break
			}
		}
	})
}

// EachPart calls fn with every part of a multipart/form-data body, in order, and is otherwise as [Multipart]. The name of
// a part without one is "".
func EachPart(body []byte, boundary string, fn func(name string, p Part)) error {
	delimiter := []byte("\r\n--" + boundary)
	from := 0
	if !bytes.HasPrefix(body, delimiter[2:]) {
		from = bytes.Index(body, delimiter) + 2
	}
	pos, last, err := firstPart(body, delimiter)
	for n := 0; !last; n++ {
		if err != nil {
			return err
		}
		if n == maxParts {
			return fail(pos, "form has too many parts")
		}
		var head, content []byte
		if head, content, err = cutHeader(body, pos); err != nil {
			return err
		}
		start := len(body) - len(content)
		// The delimiter's line break may be the one that ends the header.
		at := bytes.Index(body[start-2:], delimiter)
		if at < 0 {
			return fail(len(body), "form part is not closed")
		}
		at += start - 2
		fn(fieldName(head), Part{Present: true, Value: body[start:max(at, start)], from: from, to: at + 2})
		from = at + 2
		pos, last, err = delimiterEnd(body, at+len(delimiter))
	}
	return err
}

// RemoveParts returns a body without the given parts of it, which are in order. It changes body.
func RemoveParts(body []byte, parts []Part) []byte {
	if len(parts) == 0 {
		return body
	}
	out := body[:parts[0].from]
	for i, p := range parts {
		end := len(body)
		if i+1 < len(parts) {
			end = parts[i+1].from
		}
		out = append(out, body[p.to:end]...)
	}
	return out
}

// firstPart skips the preamble and returns what [delimiterEnd] returns for the
// first delimiter.
func firstPart(body, delimiter []byte) (pos int, last bool, err error) {
	if bytes.HasPrefix(body, delimiter[2:]) {
		return delimiterEnd(body, len(delimiter)-2)
	}
	at := bytes.Index(body, delimiter)
	if at < 0 {
		return 0, false, fail(len(body), "form has no part")
	}
	return delimiterEnd(body, at+len(delimiter))
}

// delimiterEnd reads what follows a delimiter: two dashes after the last part,
// else optional blanks and a line break. It returns where the next part begins.
func delimiterEnd(body []byte, pos int) (next int, last bool, err error) {
	if bytes.HasPrefix(body[pos:], []byte("--")) {
		return pos + 2, true, nil
	}
	for pos < len(body) && (body[pos] == ' ' || body[pos] == '\t') {
		pos++
	}
	if !bytes.HasPrefix(body[pos:], []byte("\r\n")) {
		return pos, false, fail(pos, "form delimiter is malformed")
	}
	return pos + 2, false, nil
}

// cutHeader splits a part that begins at pos into its header lines and all
// that follows.
func cutHeader(body []byte, pos int) (head, content []byte, err error) {
	rest := body[pos:]
	if bytes.HasPrefix(rest, []byte("\r\n")) {
		return nil, rest[2:], nil
	}
	window := rest[:min(len(rest), maxPartHeader)]
	end := bytes.Index(window, []byte("\r\n\r\n"))
	if end < 0 {
		return nil, nil, fail(pos, "form part has no end of header")
	}
	if head = rest[:end]; hasControl(head) {
		return nil, nil, fail(pos, "form part's header has a control character")
	}
	return head, rest[end+4:], nil
}

// hasControl reports a control character in header lines other than tabs and
// the line breaks between them. Some readers end a line, or the header, at a
// bare line feed: they would find other contents in the part.
func hasControl(head []byte) bool {
	for i := 0; i < len(head); i++ {
		switch c := head[i]; {
		case c == '\r' && i+1 < len(head) && head[i+1] == '\n':
			i++
		case c < ' ' && c != '\t', c == 0x7f:
			return true
		}
	}
	return false
}

// fieldName finds the field name in a part's header: "" where the part has none, or more than one disposition.
func fieldName(head []byte) (name string) {
	seen := false
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		field, value, found := bytes.Cut(line, []byte(":"))
		if !found || !strings.EqualFold(string(bytes.TrimSpace(field)), "Content-Disposition") {
			continue
		}
		kind, params, err := mime.ParseMediaType(string(value))
		if err != nil || kind != "form-data" || seen {
			return ""
		}
		name, seen = params["name"], true
	}
	return name
}
