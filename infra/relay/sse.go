package relay

import "bytes"

// events tracks whether an event stream is between two events, where a comment or another event may be inserted, and
// the length of its current line.
type events struct {
	tail [4]byte // the last bytes, newest last; zero before the first one
	line int
}

// take reads p and returns the length so far of the longest line that p is part of.
func (e *events) take(p []byte) (longest int) {
	if len(p) >= len(e.tail) {
		copy(e.tail[:], p[len(p)-len(e.tail):])
	} else {
		copy(e.tail[:], e.tail[len(p):])
		copy(e.tail[len(e.tail)-len(p):], p)
	}
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			e.line += len(p)
			return max(longest, e.line)
		}
		longest = max(longest, e.line+i)
		e.line = 0
		p = p[i+1:]
	}
}

// boundary reports whether an event ended here, or none has started yet.
func (e *events) boundary() bool {
	t := string(e.tail[:])
	return t[3] == 0 || t[2:] == "\n\n" || t == "\r\n\r\n" || t[2:] == "\r\r"
}

// begun reports whether any byte has passed.
func (e *events) begun() bool { return e.tail[3] != 0 }

// appendBoundary appends what is needed to end the current event.
func (e *events) appendBoundary(b []byte) []byte {
	switch {
	case e.boundary():
		return b
	case e.tail[3] == '\n':
		return append(b, '\n')
	}
	return append(b, "\n\n"...)
}
