package relay

import "bytes"

// doneText is the only event data that need not be JSON.
const doneText = "[DONE]"

type lineState uint8

const (
	lineStart lineState = iota // at the start of a line, or within the name of its field
	lineOther                  // within a comment, or a field of no interest
	lineData                   // within data
)

// jsonEvents checks that the data of each event in a stream is JSON or doneText. It stores none of the data.
type jsonEvents struct {
	line   lineState
	name   int  // bytes of "data:" matched at the start of the line
	cr     bool // the last byte was a CR; an LF may still belong to it
	ending int  // bytes of doneText matched at the start of the event's data
	data   jsonText
}

// take checks the next bytes p. It returns how many of them precede the first bad event, or len(p) and true if none is
// bad.
func (e *jsonEvents) take(p []byte) (good int, ok bool) {
	for i := 0; i < len(p); {
		c := p[i]
		if c == '\n' && e.cr {
			e.cr = false
			i++
			continue
		}
		if e.cr = c == '\r'; c == '\n' || e.cr {
			blank := e.line == lineStart && e.name == 0
			if blank && !e.whole() || !blank && !e.endLine() {
				return good, false
			}
			if i++; blank {
				e.data, e.ending = jsonText{}, 0
				good = i
			}
			continue
		}
		n := 1
		switch e.line {
		case lineStart:
			e.begin(c)
		default:
			n = lineRun(p[i:])
			if e.line == lineData && !e.feed(p[i:i+n]) {
				return good, false
			}
		}
		i += n
	}
	return len(p), true
}

// whole reports whether the event may end here.
func (e *jsonEvents) whole() bool {
	return e.ending == len(doneText) || e.ending <= 1 && (e.data.empty() || e.data.whole())
}

// begin takes a byte of a line whose field is not known yet.
func (e *jsonEvents) begin(c byte) {
	const field = "data:"
	if c != field[e.name] {
		e.line = lineOther
	} else if e.name++; e.name == len(field) {
		e.line = lineData
	}
}

// endLine ends a line that is not blank. The data lines of an event form one text.
func (e *jsonEvents) endLine() bool {
	ok := e.line != lineData || e.feed([]byte{'\n'})
	e.line, e.name = lineStart, 0
	return ok
}

// feed takes a piece of data. A bracket may start an array or doneText.
func (e *jsonEvents) feed(p []byte) bool {
	for i, c := range p {
		switch {
		case e.ending == 0 && e.data.empty() && c == '[':
			e.ending = 1
			e.data.feed(p[i : i+1])
		case e.ending == 1 && c == doneText[1], e.ending > 1 && e.ending < len(doneText) && c == doneText[e.ending]:
			e.ending++
		case e.ending > 1:
			if e.ending < len(doneText) || !space(c) {
				return false
			}
		case e.ending == 1:
			e.ending = 0
			return e.data.feed(p[i:])
		case !space(c) || !e.data.empty():
			return e.data.feed(p[i:])
		}
	}
	return true
}

// lineRun returns how many leading bytes of p belong to one line.
func lineRun(p []byte) int {
	n := bytes.IndexByte(p, '\n')
	if n < 0 {
		n = len(p)
	}
	if cr := bytes.IndexByte(p[:n], '\r'); cr >= 0 {
		n = cr
	}
	return n
}
