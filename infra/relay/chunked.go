package relay

import (
	"errors"
	"strings"
)

const (
	maxChunkLine = 512       // a size line including its extensions
	maxTrailers  = 16 << 10  // all trailer lines of one body
	maxChunkSize = 1<<62 - 1 // keeps the size an int64 while digits are added
)

var errChunk = errors.New("malformed chunked framing")

type chunkState uint8

const (
	chunkSizeFirst chunkState = iota // before the first digit of a size
	chunkSize                        // within the digits
	chunkExt                         // within spaces and tabs or an extension, which are skipped
	chunkSizeLF                      // before the LF that ends the size line
	chunkData                        // left bytes of data follow
	chunkDataCR                      // before the CR that ends the data
	chunkDataLF                      // before its LF
	trailerStart                     // at the start of a trailer line or of the final CRLF
	trailerLine                      // within a trailer line, which is skipped
	trailerLF                        // before the LF of a trailer line
	finalLF                          // before the very last LF
	chunkDone
)

// chunkDecoder removes chunked framing from a byte stream that arrives in pieces of any size. It is strict: hexadecimal
// sizes, bounded lines, which end with CRLF or, as some engines write them, with a line feed alone. Its state between
// pieces is a few words, so it never has to keep bytes of the stream for the next piece.
type chunkDecoder struct {
	state chunkState
	left  int64 // data bytes left in this chunk, or the size read so far
	line  int   // bytes in this size line, or in all trailers
	bare  bool  // this size line ended with a line feed alone, so its data must, too
}

// decode takes the next piece of the stream. It returns the data bytes found, moved together inside b if they came in
// several chunks, and how many bytes of b belonged to the body. used is less than len(b) only if the body ended before.
func (d *chunkDecoder) decode(b []byte) (data []byte, used int, err error) {
	start, end := 0, 0 // data is b[start:end]
	for i := 0; i < len(b); {
		if d.state == chunkData {
			n := len(b) - i
			if int64(n) > d.left {
				n = int(d.left)
			}
			if start == end {
				start, end = i, i+n
			} else {
				end += copy(b[end:], b[i:i+n])
			}
			i += n
			if d.left -= int64(n); d.left == 0 {
				d.state = chunkDataCR
			}
			continue
		}
		if !d.step(b[i]) {
			return b[start:end], i, errChunk
		}
		i++
		if d.state == chunkDone {
			return b[start:end], i, nil
		}
	}
	return b[start:end], len(b), nil
}

// step takes one byte that is not data. It returns false if the byte breaks the framing.
func (d *chunkDecoder) step(c byte) bool {
	switch d.state {
	case chunkSizeFirst, chunkSize:
		if v := strings.IndexByte("0123456789abcdef", lower(c)); v >= 0 {
			if d.left > maxChunkSize>>4 {
				return false
			}
			d.left = d.left<<4 | int64(v)
			d.state = chunkSize
			return d.countLineByte(maxChunkLine)
		}
		switch {
		case d.state == chunkSizeFirst:
			return false
		case c == ';', c == ' ', c == '\t':
			d.state = chunkExt
			return true
		}
		return d.endLine(c, chunkSizeLF)
	case chunkExt:
		return d.endLine(c, chunkSizeLF) || isText(c) && d.countLineByte(maxChunkLine)
	case chunkSizeLF, chunkDataLF, trailerLF, finalLF:
		return d.endLine(c, d.state)
	case chunkDataCR:
		return d.endLine(c, chunkDataLF)
	case trailerStart:
		if d.endLine(c, finalLF) {
			return true
		}
		d.state = trailerLine
		return isText(c) && d.countLineByte(maxTrailers)
	case trailerLine:
		return d.endLine(c, trailerLF) || isText(c) && d.countLineByte(maxTrailers)
	}
	return false
}

// endLine takes a byte that ends a line, and reports whether it is one. lf is the state before the line's line feed.
func (d *chunkDecoder) endLine(c byte, lf chunkState) bool {
	bare := d.state != lf
	if bare && c == '\r' {
		d.state = lf
		return true
	}
	if c != '\n' {
		return false
	}
	switch lf {
	case chunkSizeLF:
		d.bare, d.line, d.state = bare, 0, chunkData
		if d.left == 0 {
			d.state = trailerStart
		}
	case chunkDataLF:
		d.state = chunkSizeFirst
		return bare == d.bare
	case trailerLF:
		d.state = trailerStart
	default:
		d.state = chunkDone
	}
	return true
}

// countLineByte counts one byte of the line and reports whether it is within the limit.
func (d *chunkDecoder) countLineByte(limit int) bool {
	d.line++
	return d.line <= limit
}

// isText reports whether a byte may appear in an extension or a trailer.
func isText(c byte) bool { return c == '\t' || c >= ' ' && c != 0x7f }
