package media

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

var errGIF = errors.New("gif: its data is damaged, or more than its size needs")

// checkGIF reads a GIF file to the end of its first frame, the only one that engines decode. A code of its data may stand for
// 4,000 pixels, and decoders unpack codes behind the last pixel as well, so much more than the frame needs is an error. A file
// that is cut short is none.
// Source: https://www.w3.org/Graphics/GIF/spec-gif89a.txt
func checkGIF(r *bufio.Reader) error {
	var head [13]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return ignoreEnd(err)
	}
	if err := skipTable(r, head[10]); err != nil {
		return ignoreEnd(err)
	}
	for {
		kind, err := r.ReadByte()
		if err != nil || kind == 0x3B { // the end, without a frame
			return ignoreEnd(err)
		}
		switch kind {
		case 0x21: // extension
			head, err := r.Peek(2)
			if err != nil {
				return ignoreEnd(err)
			}
			if head[0] == 0xF9 && head[1] != 4 { // decoders go on in various places behind a graphic control of another size
				return errGIF
			}
			_, _ = r.Discard(1)
			if _, err := io.Copy(io.Discard, &subBlocks{r: r}); err != nil {
				return ignoreEnd(err)
			}
		case 0x2C: // frame
			var frame [9]byte
			if _, err := io.ReadFull(r, frame[:]); err != nil {
				return ignoreEnd(err)
			}
			if err := skipTable(r, frame[8]); err != nil {
				return ignoreEnd(err)
			}
			pixels := int(binary.LittleEndian.Uint16(frame[4:])) * int(binary.LittleEndian.Uint16(frame[6:]))
			return ignoreEnd(checkLZW(r, 2*pixels+1<<16))
		default:
			return errGIF
		}
	}
}

// skipTable skips the table of colours that flags announce.
func skipTable(r *bufio.Reader, flags byte) error {
	if flags&0x80 == 0 {
		return nil
	}
	_, err := r.Discard(3 << (flags&7 + 1))
	return err
}

// checkLZW reads the codes of a frame and adds up the lengths of what they stand for, up to limit pixels.
func checkLZW(r *bufio.Reader, limit int) error {
	literals, err := r.ReadByte()
	if err != nil {
		return err
	}
	if literals < 1 || literals > 11 {
		return errGIF
	}
	data := bufio.NewReaderSize(&subBlocks{r: r}, 4<<10)
	var lengths [1 << 12]int // of the codes behind the literals
	clear := 1 << literals
	next, width, last := clear+2, uint(literals)+1, 0 // last is the length of the code before, 0 for none
	var bits, have uint
	for {
		for have < width {
			b, err := data.ReadByte()
			if err != nil {
				return err
			}
			bits |= uint(b) << have
			have += 8
		}
		code := int(bits & (1<<width - 1))
		bits, have = bits>>width, have-width
		switch {
		case code == clear:
			next, width, last = clear+2, uint(literals)+1, 0
			continue
		case code == clear+1:
			return nil
		case code > next || code == next && last == 0:
			return errGIF
		}
		if last > 0 && next < len(lengths) {
			lengths[next] = last + 1
			next++
			if next == 1<<width && width < 12 {
				width++
			}
		}
		last = 1
		if code > clear {
			last = lengths[code]
		}
		if limit -= last; limit < 0 {
			return errGIF
		}
	}
}

// subBlocks reads a chain of sub-blocks as one.
type subBlocks struct {
	r    *bufio.Reader
	left int
	end  bool
}

func (s *subBlocks) Read(p []byte) (int, error) {
	if s.left == 0 && !s.end {
		n, err := s.r.ReadByte()
		if err != nil {
			return 0, err
		}
		s.left, s.end = int(n), n == 0
	}
	if s.end {
		return 0, io.EOF
	}
	n, err := s.r.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}
