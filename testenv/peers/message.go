package peers

import (
	"bytes"
	"strconv"
)

var (
	headEnd  = []byte("\r\n\r\n")
	bodyEnd  = []byte("\r\n0\r\n\r\n")
	lengthIs = []byte("content-length:")
	chunksIs = []byte("transfer-encoding: chunked")
)

// MessageLength tells how long an HTTP/1.1 message is that begins with b: its head, and head and body together, which is 0
// as long as that is not known. A body in chunks is known when b ends with its last chunk: nothing may follow it, and its
// data must hold no last chunk of their own. A head of 0 bytes has not come whole yet. It is for the plain messages of a
// benchmark and checks nothing.
func MessageLength(b []byte) (head, whole int) {
	head = bytes.Index(b, headEnd) + len(headEnd)
	if head < len(headEnd) {
		return 0, 0
	}
	for rest := b[:head]; len(rest) > 2; {
		end := bytes.IndexByte(rest, '\n')
		line := rest[:end-1]
		rest = rest[end+1:]
		switch {
		case len(line) > len(lengthIs) && bytes.EqualFold(line[:len(lengthIs)], lengthIs):
			n, err := strconv.Atoi(string(bytes.TrimSpace(line[len(lengthIs):])))
			if err != nil {
				return head, 0
			}
			return head, head + n
		case bytes.EqualFold(line, chunksIs):
			if LastChunk(b) {
				return head, len(b)
			}
			return head, 0
		}
	}
	return head, head
}

// LastChunk reports whether a message in chunks of which b is known ends with b.
func LastChunk(b []byte) bool { return bytes.HasSuffix(b, bodyEnd) }
