package media

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/flate"
)

const pngSignature = "\x89PNG\r\n\x1a\n"

var errPNG = errors.New("png: its data is damaged, or more than its size needs")

// checkPNG reads a PNG file to the end of its pixels. Decoders, llama.cpp's among them, unpack the data of all IDAT chunks
// however much it is, so more than width and height need is an error.
// Source: https://www.w3.org/TR/png-3/
func checkPNG(r *bufio.Reader) error {
	if _, err := r.Discard(len(pngSignature)); err != nil {
		return err
	}
	var head [8 + 13 + checksum]byte // of the IHDR chunk, which comes first
	if _, err := io.ReadFull(r, head[:]); err != nil || string(head[4:8]) != "IHDR" || binary.BigEndian.Uint32(head[:]) != 13 {
		return errPNG
	}
	width, height := int64(binary.BigEndian.Uint32(head[8:])), int64(binary.BigEndian.Uint32(head[12:]))
	samples := map[byte]int64{0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[head[17]] // by colour type
	row := (width*samples*int64(head[16]) + 7) / 8
	// Each row has a byte for its filter; interlaced pictures have at most twice the rows, each filled up to a byte.
	limit := row*height + 4*(height+16)
	d := &pngData{r: r}
	var zlib [2]byte
	if _, err := io.ReadFull(d, zlib[:]); err != nil {
		return errPNG
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(flate.NewReader(d), limit+1)); err != nil || n > limit {
		return errPNG
	}
	return nil
}

// pngData reads the content of the IDAT chunks as one.
type pngData struct {
	r      *bufio.Reader
	inside bool // of an IDAT chunk
	left   int64
}

const checksum = 4 // bytes, behind each chunk

func (d *pngData) Read(p []byte) (int, error) {
	for d.left == 0 {
		if d.inside {
			if _, err := d.r.Discard(checksum); err != nil {
				return 0, err
			}
		}
		var head [8]byte
		if _, err := io.ReadFull(d.r, head[:]); err != nil {
			return 0, err
		}
		length := int64(binary.BigEndian.Uint32(head[:]))
		switch string(head[4:]) {
		case "IDAT":
			d.inside, d.left = true, length
		case "IEND":
			return 0, io.EOF
		case "CgBI": // Apple's form, packed differently
			return 0, errPNG
		default:
			d.inside = false
			if _, err := io.CopyN(io.Discard, d.r, length+checksum); err != nil {
				return 0, err
			}
		}
	}
	n, err := d.r.Read(p[:min(int64(len(p)), d.left)])
	d.left -= int64(n)
	return n, err
}
