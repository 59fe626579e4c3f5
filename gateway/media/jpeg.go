package media

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// maxScans is how many scans a progressive JPEG file may have. Encoders make 6 to 20.
const maxScans = 100

var errJPEG = errors.New("jpeg: its segments are damaged, or it has more scans than encoders make")

// countScans reads the segments of a JPEG file to its end and returns how many times a decoder passes over the whole picture,
// and whether it is progressive, so that a decoder holds its coefficients as well.
// The data of a scan may be empty, and decoders still visit every block, so a sequential file may hold each component once,
// and a progressive one at most maxScans scans. A file that is cut short is no error.
// Source: https://www.w3.org/Graphics/JPEG/itu-t81.pdf, annex B
func countScans(r *bufio.Reader) (scans int, progressive bool, err error) {
	var frame byte // its marker, 0 before it
	components := 0
	for {
		marker, err := nextMarker(r)
		if err != nil || marker == 0xD9 { // end of image
			return scans, progressive, ignoreEnd(err)
		}
		if marker == 0x01 || marker == 0xD8 { // without a length
			continue
		}
		var head [2]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return scans, progressive, ignoreEnd(err)
		}
		length := int(binary.BigEndian.Uint16(head[:])) - len(head)
		content, err := r.Peek(min(max(length, 0), 6))
		if err != nil {
			return scans, progressive, ignoreEnd(err)
		}
		switch {
		case length < 0:
			return 0, false, errJPEG
		case marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC: // start of frame
			if frame != 0 || marker > 0xC2 || length < 6 {
				return 0, false, errJPEG
			}
			frame, components = marker, int(content[5])
			progressive = frame == 0xC2
		case marker == 0xDA: // start of scan
			if frame == 0 || length < 1 || length != 4+2*int(content[0]) {
				return 0, false, errJPEG
			}
			scans++
			components -= int(content[0])
			if progressive && scans > maxScans || !progressive && components < 0 {
				return 0, false, errJPEG
			}
		}
		if _, err := r.Discard(length); err != nil {
			return scans, progressive, ignoreEnd(err)
		}
	}
}

// nextMarker skips data to the next marker that starts a segment or ends the picture.
func nextMarker(r *bufio.Reader) (byte, error) {
	for {
		if _, err := r.ReadSlice(0xFF); errors.Is(err, bufio.ErrBufferFull) {
			continue
		} else if err != nil {
			return 0, err
		}
		b := byte(0xFF)
		for b == 0xFF { // fill bytes
			var err error
			if b, err = r.ReadByte(); err != nil {
				return 0, err
			}
		}
		if b != 0 && (b < 0xD0 || b > 0xD7) { // an escaped byte of data, or a restart in it
			return b, nil
		}
	}
}
