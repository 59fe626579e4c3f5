// Package mediafile makes media files for tests, sound and damaged ones.
package mediafile

import (
	"bytes"
	"compress/lzw"
	"compress/zlib"
	"encoding/binary"
	"hash/crc32"
	"strings"
)

// JPEG returns a grey JPEG file with the given start of frame and number of scans, each with a little data.
func JPEG(frame byte, side uint16, scans int) []byte {
	file := []byte("\xff\xd8\xff\xe0\x00\x06\xff\xda\xff\xda\xff\xdb\x00\x43\x00" + strings.Repeat("\x01", 64)) // an APP0 that looks like scans
	file = append(file, 0xFF, frame, 0, 11, 8)
	file = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(file, side), side)
	file = append(file, 1, 1, 0x11, 0)
	for range scans {
		file = append(file, "\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x10data\xff\x00\xff\xd0more\xff\xff"...)
	}
	return append(file, "\xff\xd9\xff\xda\xff\xda behind the end \xff\xda"...)
}

// GIF returns a GIF file of one frame of side x side pixels with n pixels of data.
func GIF(side, n int) []byte {
	file := []byte("GIF89a")
	screen := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, uint16(side)), uint16(side))
	file = append(append(file, screen...), 0x80, 0, 0, 0, 0, 0, 9, 9, 9)
	file = append(file, "\x21\xfe\x05hello\x00\x2c\x00\x00\x00\x00"...)
	file = append(append(file, screen...), 0, 2)
	var data bytes.Buffer
	w := lzw.NewWriter(&data, lzw.LSB, 2)
	_, _ = w.Write(make([]byte, n)) // into memory
	_ = w.Close()
	for rest := data.Bytes(); len(rest) > 0; {
		k := min(len(rest), 255)
		file = append(append(file, byte(k)), rest[:k]...)
		rest = rest[k:]
	}
	return append(file, 0, 0x3B)
}

// MP3 returns an MPEG-1 mono file of 32 kbit/s: before, a frame with tag in its first bytes of sound, and frames more.
func MP3(before, tag string, frames int) []byte {
	frame := append([]byte("\xff\xfb\x10\xc4"), make([]byte, 100)...)
	first := bytes.Clone(frame)
	copy(first[4+17:], tag)
	return append(append([]byte(before), first...), bytes.Repeat(frame, frames)...)
}

// FLAC returns the head of a FLAC file, filled up to size bytes.
func FLAC(rate, channels, samples uint64, size int) []byte {
	file := []byte("fLaC\x80\x00\x00\x22\x10\x00\x10\x00\x00\x00\x00\x00\x00\x00")
	file = binary.BigEndian.AppendUint64(file, rate<<44|(channels-1)<<41|15<<36|samples)
	return append(file, make([]byte, size-len(file))...)
}

// WAV returns a WAV file with the given format chunks: rate, bytes of a frame, and bits.
func WAV(size int, formats ...[3]uint32) []byte {
	file := []byte("RIFF\xff\xff\xff\xffWAVE")
	for _, f := range formats {
		file = append(file, "fmt \x10\x00\x00\x00\x01\x00\x01\x00"...)
		file = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(file, f[0]), f[0])
		file = append(file, byte(f[1]), byte(f[1]>>8), byte(f[2]), 0)
	}
	return append(append(file, "data\xff\xff\xff\xff"...), make([]byte, size)...)
}

// PNG returns a PNG file with the given header, and pixels in two chunks.
func PNG(width, height uint32, depth, colour, interlace byte, pixels []byte) []byte {
	file := []byte("\x89PNG\r\n\x1a\n")
	chunk := func(name string, content []byte) {
		file = binary.BigEndian.AppendUint32(file, uint32(len(content)))
		from := len(file)
		file = append(append(file, name...), content...)
		file = binary.BigEndian.AppendUint32(file, crc32.ChecksumIEEE(file[from:]))
	}
	chunk("IHDR", append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, width), height), depth, colour, 0, 0, interlace))
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	_, _ = z.Write(pixels) // into memory
	_ = z.Close()
	chunk("IDAT", packed.Bytes()[:1])
	chunk("IDAT", nil)
	chunk("tEXt", []byte("a\x00b"))
	chunk("IDAT", packed.Bytes()[1:])
	chunk("IEND", nil)
	return file
}

// OneSample is a WAV file of one sample, over which llama-server ends itself.
var OneSample = []byte("RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80\x3e\x00\x00\x00\x7d\x00\x00\x02\x00\x10\x00data\x02\x00\x00\x00\x01\x00")
