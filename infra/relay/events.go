package relay

import (
	"bytes"
	"regexp"
	"slices"
)

// MaxLine is the longest line of an event stream that should be passed on or translated, in bytes.
const MaxLine = 16 << 20

// TailSize is how much of the end of a stream AppendTail keeps at least, in bytes.
const TailSize = 4 << 10

// AppendTail appends the last TailSize bytes of p to tail. If the result would exceed twice TailSize, it first cuts tail to
// its own last TailSize bytes.
func AppendTail(tail, p []byte) []byte {
	p = p[max(0, len(p)-TailSize):]
	if len(tail)+len(p) > 2*TailSize {
		tail = tail[:copy(tail, tail[len(tail)-TailSize:])]
	}
	return append(tail, p...)
}

// chatEvent matches any event of a chat, also one cut off before its closing brace; chatEnd matches one that can be the last.
var (
	chatEvent = regexp.MustCompile(`"choices"\s*:|"type"\s*:\s*"(?:message|content_block)_|(?:^|\n)data: ?\{(?:[^\n]*[^}\s])?\s*$`)
	chatEnd   = regexp.MustCompile(`(?m)^(?:data: ?(?:\[DONE\]|\{\s*"error")|event: ?error|error:)|"finish_reason"\s*:\s*"|` +
		`"type"\s*:\s*"(?:message_stop|error)"|"object"\s*:\s*"error"|"choices"\s*:\s*\[\][^\n]*"usage"\s*:\s*\{`)
)

// usualEnds are what chatEnd matches in most streams. Looking for them takes a hundredth of its time.
var usualEnds = [][]byte{[]byte("\ndata: [DONE]"), []byte(`"finish_reason":"`), []byte(`"type":"message_stop"`)}

// isTruncatedChat reports whether tail is the end of a chat stream that broke off before its last event.
func isTruncatedChat(tail []byte) bool {
	isUsual := func(end []byte) bool { return bytes.Contains(tail, end) }
	return !slices.ContainsFunc(usualEnds, isUsual) && chatEvent.Match(tail) && !chatEnd.Match(tail)
}

// Events tracks whether an event stream is between two events, where a comment or another event can be inserted, and
// the length of its current line.
type Events struct {
	tail [4]byte // the last bytes, newest last; zero before the first one
	line int
}

// Feed reads the next bytes of the stream. It returns ErrTooLarge if they belong to a line longer than MaxLine.
func (e *Events) Feed(p []byte) error {
	if len(p) >= len(e.tail) {
		copy(e.tail[:], p[len(p)-len(e.tail):])
	} else {
		copy(e.tail[:], e.tail[len(p):])
		copy(e.tail[len(e.tail)-len(p):], p)
	}
	for len(p) > 0 {
		n := bytes.IndexByte(p, '\n')
		if n < 0 {
			n = len(p)
		}
		if e.line += n; e.line > MaxLine {
			return ErrTooLarge
		}
		if n == len(p) {
			break
		}
		e.line, p = 0, p[n+1:]
	}
	return nil
}

// Boundary reports whether an event ended here, or none has started yet.
func (e *Events) Boundary() bool {
	t := string(e.tail[:])
	return t[3] == 0 || t[2:] == "\n\n" || t == "\r\n\r\n" || t[2:] == "\r\r"
}

// Started reports whether any byte has passed.
func (e *Events) Started() bool { return e.tail[3] != 0 }

// AppendBoundary appends what is needed to end the current event.
func (e *Events) AppendBoundary(b []byte) []byte {
	switch {
	case e.Boundary():
		return b
	case e.tail[3] == '\n':
		return append(b, '\n')
	}
	return append(b, "\n\n"...)
}
