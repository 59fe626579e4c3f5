package relay

import "bytes"

// events follows the bytes of an event stream: whether they end where a comment or another event may be put in, and how
// long the line is that they end in.
type events struct {
	tail [4]byte // the last bytes, the newest at the end; zero before the first one
	line int
}

// take follows p and returns the length of the longest line seen up to now that p took part in.
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

// boundary reports that an event ended here, or that there was none yet.
func (e *events) boundary() bool {
	t := string(e.tail[:])
	return t[3] == 0 || t[2:] == "\n\n" || t == "\r\n\r\n" || t[2:] == "\r\r"
}

// begun reports that there was something.
func (e *events) begun() bool { return e.tail[3] != 0 }

// appendBoundary appends what is missing to end the event that the stream stopped in.
func (e *events) appendBoundary(b []byte) []byte {
	switch {
	case e.boundary():
		return b
	case e.tail[3] == '\n':
		return append(b, '\n')
	}
	return append(b, "\n\n"...)
}
