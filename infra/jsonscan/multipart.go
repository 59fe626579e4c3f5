package jsonscan

import (
	"bytes"
	"mime"
	"regexp"
	"slices"
	"strings"
)

// Limits of a form. They are far above what a client of the served routes sends and keep a hostile body from costing
// more than its own length.
const (
	maxParts      = 256
	maxPartHeader = 8 << 10
)

// Part is one field of a form. The zero Part is a field the form does not have.
type Part struct {
	Present bool
	Value   []byte // the content inside the body; not a copy

	from, to int // from the delimiter before it to the one behind it, without their line breaks
	unnamed  int // where its file name would stand; 0 where it has one, or no field name
}

// Empty reports whether the field is missing or has no content.
func (p Part) Empty() bool { return len(p.Value) == 0 }

// String returns the content as a copy.
func (p Part) String() string { return string(p.Value) }

// Boundary returns the boundary of a multipart/form-data media type. ok is false for any other media type and unless
// there is one boundary of a possible length. Clients write it with and without quotes, whatever is in it.
func Boundary(contentType string) (boundary string, ok bool) {
	media, params, _ := strings.Cut(contentType, ";")
	if !strings.EqualFold(strings.TrimSpace(media), "multipart/form-data") {
		return "", false
	}
	for param := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		if !strings.EqualFold(name, "boundary") {
			continue
		}
		if ok {
			return "", false
		}
		if n := len(value); n > 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		boundary, ok = value, value != "" && len(value) <= 70 && !strings.ContainsAny(value, "\"\\")
	}
	return boundary, ok
}

// Multipart goes through a multipart/form-data body and stores in out[i] the field names[i]; the last of several wins.
// out must be at least as long as names. Contents are not copied. The error is a [*SyntaxError]; the closing delimiter
// must be there, so a body cut short is never taken for a whole one.
func Multipart(body []byte, boundary string, names []string, out []Part) error {
	out = out[:len(names)]
	clear(out)
	return EachPart(body, boundary, func(name string, p Part) {
		if i := slices.Index(names, name); i >= 0 {
			out[i] = p
		}
	})
}

// EachPart calls fn with every part of a multipart/form-data body, in order, and is otherwise as [Multipart]. The name
// of a part without one is "".
func EachPart(body []byte, boundary string, fn func(name string, p Part)) error {
	delimiter := []byte("\r\n--" + boundary)
	pos := 0 // of what follows a delimiter
	if bytes.HasPrefix(body, delimiter[2:]) {
		pos = len(delimiter) - 2
	} else if at := bytes.Index(body, delimiter); at >= 0 {
		pos = at + len(delimiter)
	} else {
		return fail(len(body), "form has no part")
	}
	from := pos - len(delimiter) + 2
	for n := 0; !bytes.HasPrefix(body[pos:], []byte("--")); n++ {
		rest := bytes.TrimLeft(body[pos:], " \t")
		pos = len(body) - len(rest)
		if !bytes.HasPrefix(rest, []byte("\r\n")) {
			return fail(pos, "form delimiter is malformed")
		}
		if n == maxParts {
			return fail(pos, "form has too many parts")
		}
		// The line break behind the delimiter is before the first line of the header, or the second half of an empty
		// one.
		end := bytes.Index(rest[:min(len(rest), maxPartHeader)], []byte("\r\n\r\n"))
		if end < 0 {
			return fail(pos, "form part has no end of header")
		}
		head := rest[min(end, 2):end]
		if hasControl(head) {
			return fail(pos, "form part's header has a control character")
		}
		start := pos + end + 4
		at := bytes.Index(body[start-2:], delimiter) // its line break may be the one that ends the header
		if at < 0 {
			return fail(len(body), "form part is not closed")
		}
		at += start - 2
		name, unnamed := fieldName(head)
		if unnamed > 0 {
			unnamed += pos + min(end, 2)
		}
		fn(name, Part{Present: true, Value: body[start:max(at, start)], from: from, to: at + 2, unnamed: unnamed})
		from, pos = at+2, at+len(delimiter)
	}
	return nil
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

// PrependPart returns a valid form with another field before its first one.
func PrependPart(body []byte, boundary, name, value string) []byte {
	delimiter := "--" + boundary
	if !bytes.HasPrefix(body, []byte(delimiter)) {
		body = body[bytes.Index(body, []byte("\r\n"+delimiter))+2:] // without the preamble
	}
	part := delimiter + "\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	return append([]byte(part), body...)
}

// NameFiles returns a body in which the parts of these names have a file name, by which engines distinguish files from
// text.
func NameFiles(body []byte, boundary string, names []string) []byte {
	var out []byte
	copied := 0
	_ = EachPart(body, boundary, func(name string, p Part) { // of an invalid form, what was read
		if p.unnamed > 0 && slices.Contains(names, name) {
			out = append(append(out, body[copied:p.unnamed]...), `; filename="file"`...)
			copied = p.unnamed
		}
	})
	if copied == 0 {
		return body
	}
	return append(out, body[copied:]...)
}

// hasControl reports a control character in header lines other than tabs and the line breaks between them. Some readers
// end a line, or the header, at a bare line feed: they would find other contents in the part.
func hasControl(head []byte) bool {
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		if bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return true
		}
	}
	return false
}

// fieldName finds the field name in a part's header: "" where the part has none, or more than one disposition. unnamed
// is where the header could name a file, 0 where it does.
func fieldName(head []byte) (name string, unnamed int) {
	seen, end := false, -len("\r\n")
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		end += len("\r\n") + len(line)
		field, value, found := bytes.Cut(line, []byte(":"))
		if !found || !strings.EqualFold(string(bytes.TrimSpace(field)), "Content-Disposition") {
			continue
		}
		kind, params, err := mime.ParseMediaType(string(value))
		if err != nil { // a file name with blanks and without quotes, or given twice
			kind, _, _ = strings.Cut(strings.ToLower(string(value)), ";")
			if names := quotedName.FindAllSubmatch(value, 2); len(names) == 1 {
				params = map[string]string{"name": string(names[0][1])}
			}
		}
		if strings.TrimSpace(kind) != "form-data" || seen {
			return "", 0
		}
		if name, seen = params["name"], true; name != "" && !bytes.Contains(bytes.ToLower(value), []byte("filename")) {
			unnamed = end
		}
	}
	return name, unnamed
}

var quotedName = regexp.MustCompile(`(?i);[ \t]*name="([^"\\]*)"`)
