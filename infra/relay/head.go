package relay

import (
	"bytes"
	"errors"
	"iter"
	"strconv"
)

var (
	errHead   = errors.New("malformed response head")
	errCoding = errors.New("a compressed response, which nobody asked for")
)

// head is the head of a response: a status line and fields, as they came.
type head struct {
	fields  []byte // the lines after the status line
	status  int
	length  int64 // Content-Length; -1 without one
	chunked bool
	closes  bool // the connection serves no other request
}

// parseHead parses a complete head. It refuses what HTTP parsers could read in different ways. The lines may end with a
// line feed alone, as some engines write them. Its errors never quote the head.
func parseHead(b []byte) (h head, err error) {
	line, rest := cutLine(b)
	version, status := line[:min(len(line), len("HTTP/1.1 "))], line[min(len(line), len("HTTP/1.1 ")):]
	h = head{fields: rest, length: -1, closes: string(version) == "HTTP/1.0 "}
	if !h.closes && string(version) != "HTTP/1.1 " || len(status) < 3 || len(status) > 3 && status[3] != ' ' {
		return h, errHead
	}
	if h.status, err = strconv.Atoi(string(status[:3])); err != nil || h.status < 100 {
		return h, errHead
	}
	for old := h.closes; len(rest) > 0; {
		if line, rest = cutLine(rest); len(line) == 0 {
			break
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if name = bytes.TrimRight(name, " \t"); !ok || !isToken(name) || !isValue(value) {
			return h, errHead
		}
		switch value = bytes.TrimSpace(value); {
		case equalFold(name, "content-length"):
			n, err := strconv.ParseUint(string(value), 10, 62)
			if err != nil || h.length >= 0 && h.length != int64(n) {
				return h, errHead
			}
			h.length = int64(n)
		case equalFold(name, "transfer-encoding"):
			if old || h.chunked || !equalFold(value, "chunked") {
				return h, errHead
			}
			h.chunked = true
		case equalFold(name, "content-encoding") && len(value) > 0 && !equalFold(value, "identity"):
			return h, errCoding
		case equalFold(name, "connection"):
			for option := range bytes.SplitSeq(value, []byte(",")) {
				h.closes = h.closes || equalFold(bytes.TrimSpace(option), "close")
			}
		}
	}
	if h.chunked && h.length >= 0 {
		return h, errHead // a reader that uses the other framing sees another body
	}
	return h, nil
}

// unfold joins the lines of folded fields with spaces, as RFC 9112, section 5.2 requires. A folded line after the status line
// belongs to no field: it stays, and parseHead refuses it.
func unfold(head []byte) {
	for i := bytes.IndexByte(head, '\n') + 1; i < len(head)-1; i++ {
		if head[i] == '\n' && (head[i+1] == ' ' || head[i+1] == '\t') {
			if head[i] = ' '; head[i-1] == '\r' {
				head[i-1] = ' '
			}
		}
	}
}

// cutLine returns the first line of b without its end, and what follows it.
func cutLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), rest
}

// headEnd returns the length of the head at the start of b, or 0 if it is incomplete. The first searched bytes are
// known to contain no end.
func headEnd(b []byte, searched int) int {
	for i := max(searched-3, 0); ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return 0
		}
		i += n + 1
		switch {
		case bytes.HasPrefix(b[i:], []byte("\n")):
			return i + 1
		case bytes.HasPrefix(b[i:], []byte("\r\n")):
			return i + 2
		}
	}
}

// fieldValues yields what follows the colon in each line of the field; lower is its name in lower case.
func fieldValues(block []byte, lower string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(block) > 0 {
			var line []byte
			line, block = cutLine(block)
			if len(line) <= len(lower) || !equalFold(line[:len(lower)], lower) {
				continue
			}
			rest := bytes.TrimLeft(line[len(lower):], " \t")
			if len(rest) > 0 && rest[0] == ':' && !yield(bytes.TrimSpace(rest[1:])) {
				return
			}
		}
	}
}

// hasField reports whether a block of lines has the field; lower is its name in lower case.
func hasField(block []byte, lower string) bool {
	for range fieldValues(block, lower) {
		return true
	}
	return false
}
