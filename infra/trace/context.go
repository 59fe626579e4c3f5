package trace

import "encoding/hex"

// Header is the name of W3C's header with the trace context of a request.
const Header = "traceparent"

// Context says which trace a request belongs to, and which of its spans asked for it.
type Context struct {
	trace [16]byte
	span  [8]byte
	quiet bool // the sender does not record this trace, and nobody else should
}

// size is the length of a trace context of version 00.
const size = len("00-") + 32 + len("-") + 16 + len("-01")

// Parse reads the header's value. It returns false for anything but a valid context of version 00, and for the beginning of
// a later version that is one, as W3C asks.
func Parse(header []byte) (c Context, ok bool) {
	if len(header) < size || header[2] != '-' || header[35] != '-' || header[52] != '-' {
		return Context{}, false
	}
	for _, b := range header[:size] {
		if (b < '0' || b > '9') && (b < 'a' || b > 'f') && b != '-' {
			return Context{}, false
		}
	}
	switch version := string(header[:2]); {
	case version == "ff", version == "00" && len(header) != size, len(header) > size && header[size] != '-':
		return Context{}, false
	}
	var version, flags [1]byte
	for _, part := range []struct{ to, from []byte }{{version[:], header[:2]}, {c.trace[:], header[3:35]}, {c.span[:], header[36:52]}, {flags[:], header[53:55]}} {
		if _, err := hex.Decode(part.to, part.from); err != nil {
			return Context{}, false
		}
	}
	if c.trace == [16]byte{} || c.span == [8]byte{} {
		return Context{}, false
	}
	c.quiet = flags[0]&1 == 0
	return c, true
}

// Append appends the header's value.
func (c Context) Append(dst []byte) []byte {
	dst = hex.AppendEncode(append(dst, "00-"...), c.trace[:])
	dst = hex.AppendEncode(append(dst, '-'), c.span[:])
	if c.quiet {
		return append(dst, "-00"...)
	}
	return append(dst, "-01"...)
}
