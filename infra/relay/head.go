package relay

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"iter"
	"sync"

	"github.com/valyala/fasthttp"
)

var errHead = errors.New("malformed response head")

// headParser lets fasthttp parse a head in memory.
type headParser struct {
	src []byte
	br  *bufio.Reader
}

func (p *headParser) Read(b []byte) (int, error) {
	if len(p.src) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.src)
	p.src = p.src[n:]
	return n, nil
}

var headParsers = sync.Pool{New: func() any {
	p := new(headParser)
	p.br = bufio.NewReaderSize(p, smallBuffer)
	return p
}}

// parseHead parses one complete head, which must end at the end of head. It accepts only what every HTTP parser would
// read in the same way. Its errors never quote the head.
func parseHead(h *fasthttp.ResponseHeader, head []byte) error {
	http11 := bytes.HasPrefix(head, []byte("HTTP/1.1 "))
	if !http11 && !bytes.HasPrefix(head, []byte("HTTP/1.0 ")) || !hasStatus(head[len("HTTP/1.1 "):]) || !plainLines(head) {
		return errHead
	}
	p := headParsers.Get().(*headParser)
	p.src = head
	p.br.Reset(p)
	err := h.Read(p.br)
	whole := p.br.Buffered() == 0 && len(p.src) == 0
	p.src = nil
	headParsers.Put(p)
	switch {
	case err != nil || !whole:
		return errHead
	case h.ContentLength() == -1 && hasField(head, "content-length"):
		return errHead // both framings: a reader that uses the other one sees another body
	case !http11 && hasField(head, "transfer-encoding"):
		return errHead
	}
	return nil
}

// hasStatus reports whether b starts with a status from 100 to 999. fasthttp reads 000 as 200.
func hasStatus(b []byte) bool {
	if len(b) < 4 || b[0] == '0' || b[3] != ' ' && b[3] != '\r' {
		return false
	}
	return !bytes.ContainsFunc(b[:3], func(c rune) bool { return c < '0' || c > '9' })
}

// headEnd returns the length of the head at the start of b, or 0 if it is incomplete. The first from bytes were already
// searched.
func headEnd(b []byte, from int) int {
	from = max(from-3, 0)
	if i := bytes.Index(b[from:], []byte("\r\n\r\n")); i >= 0 {
		return from + i + 4
	}
	return 0
}

// plainLines reports whether every line ends in CRLF, CR and LF appear nowhere else, and no white space precedes a
// field's colon, since some parsers take it as part of the name.
func plainLines(head []byte) bool {
	for len(head) > 0 {
		i := bytes.IndexByte(head, '\n')
		if i <= 0 || bytes.IndexByte(head[:i], '\r') != i-1 {
			return false
		}
		if colon := bytes.IndexByte(head[:i], ':'); colon > 0 && (head[colon-1] == ' ' || head[colon-1] == '\t') {
			return false
		}
		head = head[i+1:]
	}
	return true
}

// wantsClose looks for the option "close" in all Connection fields of a head. fasthttp recognises only the plain word,
// and lets a later field override it.
func wantsClose(head []byte) bool {
	for v := range fieldValues(head, "connection") {
		for len(v) > 0 {
			opt, rest, _ := bytes.Cut(v, []byte(","))
			if equalFold(bytes.TrimSpace(opt), "close") {
				return true
			}
			v = rest
		}
	}
	return false
}

// hasField reports whether the header block has the field; lower is its name in lower case.
func hasField(block []byte, lower string) bool {
	for range fieldValues(block, lower) {
		return true
	}
	return false
}

// fieldValues yields what follows the colon in each line of the field; lower is its name in lower case.
func fieldValues(block []byte, lower string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(block) > 0 {
			line := block
			if i := bytes.IndexByte(block, '\n'); i >= 0 {
				line, block = block[:i], block[i+1:]
			} else {
				block = nil
			}
			if len(line) <= len(lower) || line[0]|0x20 != lower[0] || !equalFold(line[:len(lower)], lower) {
				continue
			}
			rest := bytes.TrimLeft(line[len(lower):], " \t")
			if len(rest) > 0 && rest[0] == ':' && !yield(rest[1:]) {
				return
			}
		}
	}
}
